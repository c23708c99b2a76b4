"""The process of the embedded S3 server: ministack, on a durable store, behind a door that no web page gets through.

ministack asks for no credentials and lets every origin in (``Access-Control-Allow-Origin: *``). So any page in a
browser on this machine could read, change and reset the topics, by way of the loopback interface, once it has found the
port; a page whose own name was made to point at 127.0.0.1 is not even cross-origin. Two things tell a browser from a
client of S3: it names the page's origin or the request's site, and a name that was made to point here is its ``Host``.

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
"""End when standard input does, which the parent holds the other end of: also when that is killed."""

_FROM_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
_HOSTS: Final = frozenset({b"127.0.0.1", b"localhost"})


def main(arguments: list[str]) -> None:
    """Serves until SIGTERM."""
    if STOP_WITH_PARENT in arguments:
        threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.argv[1:] = []  # ministack reads them, too
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
    # Reads the stored objects; otherwise that comes with the first request, and nobody would see it fail.
    durable.make_durable(importlib.import_module("ministack.services.s3"))


def guarded(inner: Application) -> Application:
    """The application, but for requests that a web page sent: those are refused with status 403, or not connected."""

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_ours(scope["headers"]):
            await inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = b"Web pages are not served here; use an S3 client."
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
