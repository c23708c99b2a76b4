"""The bucket of a local server, created when it is missing. On a cloud, buckets are infrastructure's."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from brokerless.errors import AccessDenied
from brokerless.store import create_bucket

if TYPE_CHECKING:
    from brokerless.settings import Settings

_TIMEOUT_S: Final = 10.0


def ensure_bucket(settings: Settings) -> None:
    """Creates the root's bucket if it is missing.

    Raises:
        StoreUnavailable, AccessDenied: the server did not let it.
    """
    try:
        create_bucket(settings)
    except AccessDenied:
        # ministack takes any key in a signed header, but checks it in the presigned URL that create_bucket sends; to
        # a request without a signature it says yes. Every server that cares for credentials refuses this one, too.
        if settings.profile != "embedded" or not _put_unsigned(settings):
            raise


def _put_unsigned(settings: Settings) -> bool:
    parts = urlsplit(settings.endpoint or "")
    if parts.scheme != "http":
        return False
    # Not urllib: it would send the request through the user's HTTP proxy.
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request("PUT", f"/{quote(settings.bucket)}")
        return connection.getresponse().status in {http.client.OK, http.client.CONFLICT}
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
