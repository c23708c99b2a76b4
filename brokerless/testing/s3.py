"""The S3 part of HTTP: the operation of a request, its keys, and the form of an error. Pure."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote, urlsplit

from brokerless.testing.injector import Request

if TYPE_CHECKING:
    from brokerless.testing.faults import Op
    from brokerless.testing.wire import Head

_SUBRESOURCES: Final = frozenset(
    {"acl", "cors", "encryption", "lifecycle", "location", "logging", "notification", "object-lock", "policy"}
    | {"replication", "tagging", "versioning", "versions", "website"}
)
_MESSAGES: Final = {
    "AccessDenied": "Access Denied",
    "ConditionalRequestConflict": "A conflicting conditional operation is in progress against this resource.",
    "ExpiredToken": "The provided token has expired.",
    "InternalError": "We encountered an internal error. Please try again.",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "SlowDown": "Please reduce your request rate.",
}


def request_of(head: Head, target: str) -> Request:
    """Return the kind of an S3 request and its object. Addresses are path-style, as local servers use them."""
    parts = urlsplit(target)
    method = head.words[0].decode("latin-1")
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
    if method == "POST" and "delete" in query:
        return Request("DELETE", ())
    if not bucket or not name:
        is_list = method == "GET" and bool(bucket) and not _SUBRESOURCES & query.keys()
        return Request("LIST", (query.get("prefix", [""])[0],)) if is_list else Request("OTHER", ())
    op: Op = "OTHER"
    if "uploadId" in query or "uploads" in query:
        op = "MULTIPART"
    elif _SUBRESOURCES & query.keys():
        op = "OTHER"
    elif method == "PUT":
        op = "CONDITIONAL_PUT" if {b"if-none-match", b"if-match"} & head.fields.keys() else "PUT"
    elif method == "GET":
        op = "GET"
    elif method == "HEAD":
        op = "HEAD"
    elif method == "DELETE":
        op = "DELETE"
    return Request(op, (name,))


def keys_of(body: bytes) -> tuple[str, ...]:
    """Return the keys in the body of a deletion of many objects."""
    found = re.findall(r"<Key>(.*?)</Key>", body.decode("utf-8", "replace"), re.DOTALL)
    return tuple(html.unescape(key) for key in found)


def error_xml(code: str, target: str) -> bytes:
    """Return the body of an error.

    Args:
        code: such as ``SlowDown``.
        target: of the request: what it asked for.
    """
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        f"<Message>{_MESSAGES.get(code, 'Injected by the fault proxy.')}</Message>"
        f"<Resource>{html.escape(urlsplit(target).path)}</Resource><RequestId>FAULTPROXY</RequestId></Error>"
    ).encode()
