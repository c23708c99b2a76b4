"""The process of the embedded S3 server: ministack with durable storage, and protected against web pages.

ministack checks no credentials and allows every origin (``Access-Control-Allow-Origin: *``). So a page in a browser on
this machine that finds the port could read, change and delete topics; if the page's domain resolves to 127.0.0.1 (DNS
rebinding), the request is not even cross-origin. A browser's request differs from an S3 client's in two points: it has
an ``Origin`` or ``Sec-Fetch-Site`` header, or, with DNS rebinding, a foreign ``Host``. Such requests are refused.

Run by ``brokerless.local.server``: ``python -m brokerless.local.embedded [--stop-with-parent]``.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from brokerless.local import durable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Message, Receive, Send], Awaitable[None]]

STOP_WITH_PARENT: Final = "--stop-with-parent"
"""The option to exit when standard input closes, which happens when the parent process ends, even if it is killed."""

_FROM_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
_HOSTS: Final = frozenset({b"127.0.0.1", b"localhost"})


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM."""
    if STOP_WITH_PARENT in arguments:
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.argv[1:] = []  # ministack parses them, too
    try:
        _store_durably()
    except (OSError, RuntimeError) as error:
        sys.exit(f"The embedded server cannot start: {error}")
    server: Any = importlib.import_module("ministack.app")
    server.app = guarded(server.app)
    server.main()


def _store_durably() -> None:
    durable.check_version()
    durable.raise_logged_failures()
    # The import reads the stored objects; later, with the first request, a failure would not be reported.
    durable.make_durable(importlib.import_module("ministack.services.s3"))


def guarded(inner: Application) -> Application:
    """Wrap the application: requests of web pages get status 403, their web sockets are closed."""

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_ours(scope["headers"]):
            await inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = b"Requests of web pages are refused; use an S3 client."
            length = (b"content-length", str(len(body)).encode())
            await send({"type": "http.response.start", "status": 403, "headers": [length]})
            await send({"type": "http.response.body", "body": body})

    return application


def _is_ours(headers: list[tuple[bytes, bytes]]) -> bool:
    found = {name.lower(): value for name, value in headers}
    return not _FROM_PAGES & found.keys() and found.get(b"host", b"").partition(b":")[0].lower() in _HOSTS


def _stop_with_parent() -> None:
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
