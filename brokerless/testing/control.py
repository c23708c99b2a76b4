"""The control interface of a proxy for other processes: a few paths that no bucket can have.

``GET``, ``PUT`` (replace), ``POST`` (add) and ``DELETE`` of ``/_proxy/rules``, ``GET /_proxy/log?after=N`` (JSON lines)
and ``GET /_proxy/counters``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from brokerless.errors import ConfigError
from brokerless.testing.faults import Script, plans_from_json

if TYPE_CHECKING:
    from brokerless.testing.injector import Injector

CONTROL: Final = "/_proxy/"
CONTROL_BYTES: Final = 1024 * 1024
"""No plan is longer than that."""

_JSON: Final = "application/json"


def control(injector: Injector, method: str, target: str, body: bytes | None) -> tuple[int, str, bytes]:
    """Handle a control request, and return status, content type and content of the answer.

    Args:
        injector: whose plans and counts these are.
        method: of the request.
        target: its path, which begins with ``CONTROL``, and query.
        body: None if it was refused for its length or its form.
    """
    if body is None:
        return 413, _JSON, _json({"error": f"At most {CONTROL_BYTES} bytes, and not in chunks."})
    parts = urlsplit(target)
    what = parts.path.removeprefix(CONTROL)
    if what == "log" and method == "GET":
        after = parse_qs(parts.query).get("after", ["0"])[0]
        lines = injector.log(int(after) if after.isdigit() else 0)
        return 200, "application/x-ndjson", "".join(line.to_json() + "\n" for line in lines).encode()
    try:
        value = _controlled(injector, method, what, body)
    except ConfigError as error:
        return 400, _JSON, _json({"error": str(error)})
    if value is None:
        known = "GET, PUT, POST, DELETE /_proxy/rules; GET /_proxy/log; GET /_proxy/counters"
        return 404, _JSON, _json({"error": f"{method} {parts.path} is unknown; there are {known}."})
    return 200, _JSON, _json(value)


def _controlled(injector: Injector, method: str, what: str, body: bytes) -> dict[str, Any] | None:
    if what == "counters" and method == "GET":
        return {"requests": dict(injector.requests), "faults": dict(injector.faults)}
    if what != "rules" or method not in {"GET", "PUT", "POST", "DELETE"}:
        return None
    if method == "PUT":
        injector.play(plans_from_json(body))
    elif method == "POST":
        plans = plans_from_json(body)
        if not all(isinstance(plan, Script) for plan in plans):
            raise ConfigError("Only rules can be added; PUT replaces everything, chaos included.")
        injector.add([rule for plan in plans if isinstance(plan, Script) for rule in plan.rules])
    elif method == "DELETE":
        injector.play(())
    return injector.plans()


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
