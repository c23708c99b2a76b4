"""Creation of the bucket of a local server's root."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import obstore
from obstore.store import S3Store

from brokerless.errors import AccessDenied, StoreUnavailable
from brokerless.store import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from brokerless.settings import Settings


def create_bucket(settings: Settings) -> None:
    """Create the root's bucket if it does not exist. Only for local servers; in a cloud, infrastructure creates it.

    Raises:
        StoreUnavailable, AccessDenied: the server did not answer, or refused.
    """
    if not settings.root.startswith("s3://"):
        return
    # PUT /<bucket> creates it. A client with a "virtual hosted" endpoint (the bucket's own address) signs exactly that
    # URL for an object with the bucket's name.
    server = S3Store(
        settings.bucket,
        config={
            "region": settings.region,
            # Both names, as in ``store._client``.
            "endpoint": settings.endpoint or "",
            "aws_endpoint_url_s3": settings.endpoint or "",
            "virtual_hosted_style_request": True,
            "access_key_id": settings.access_key or "",
            "secret_access_key": settings.secret_key or "",
        },
        client_options={"allow_http": True},
    )
    url = obstore.sign(server, "PUT", settings.bucket, timedelta(minutes=1))
    if settings.profile == "embedded":
        url = url.partition("?")[0]  # it has no keys, and refuses URLs that are signed with an unknown one
    try:
        # Directly to the local server, not through a proxy from the environment.
        opener = build_opener(ProxyHandler({}))
        with opener.open(Request(url, method="PUT"), timeout=REQUEST_TIMEOUT_S):  # noqa: S310  # Settings admits http(s)
            return
    except HTTPError as error:
        if error.code == 409:
            return  # it exists already
        if error.code in {401, 403}:
            raise AccessDenied(
                f"The server at {settings.endpoint} refused to create the bucket {settings.bucket!r} "
                f"(HTTP {error.code}); check the credentials."
            ) from None
        raise StoreUnavailable(
            f"The server at {settings.endpoint} could not create the bucket {settings.bucket!r}: HTTP {error.code}."
        ) from None
    except OSError as error:
        raise StoreUnavailable(
            f"No S3 server answers at {settings.endpoint} ({error}). Start one with 'brokerless up', "
            "or set AWS_ENDPOINT_URL to the one to use."
        ) from None
