"""Metrics for Prometheus: names from the catalogue, the text format, and an endpoint. Standard library only."""

from __future__ import annotations

import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokerless.metrics.catalogue import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def name_of(metric: Metric) -> str:
    """Return a metric's name for Prometheus: ``brokerless_group_lag_messages`` for ``GroupLagMessages``."""
    return "brokerless_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric.name).lower()


def exposition(samples: Iterable[tuple[Metric, Mapping[str, str], float]]) -> str:
    """Return samples in the text format of Prometheus; each metric's are gauges."""
    lines: dict[str, list[str]] = {}
    for metric, labels, value in samples:
        name = name_of(metric)
        found = lines.setdefault(name, [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} gauge"])
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        found.append(f"{name}{{{shown}}} {value:.17g}")
    return "".join(f"{line}\n" for found in lines.values() for line in found)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def endpoint(port: int, collect: Callable[[], str]) -> ThreadingHTTPServer:
    """Return a server of ``/metrics`` on 127.0.0.1, which the caller runs (``serve_forever``) and closes.

    Args:
        port: 0 chooses a free one.
        collect: returns the text for a request. If it fails, the answer is status 503 with the error.

    Raises:
        OSError: the port is in use.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, text = HTTPStatus.OK, CONTENT_TYPE, ""
            if self.path.partition("?")[0] != "/metrics":
                status, text = HTTPStatus.NOT_FOUND, "Ask for /metrics.\n"
            else:
                try:
                    text = collect()
                except Exception as error:  # the next request may succeed
                    status, text = HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: {error}\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Write no log of requests."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
