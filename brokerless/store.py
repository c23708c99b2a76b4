"""The object store, as little of it as the log needs, with its failures named.

Two kinds of request differ in what a lost answer means:

* GET, LIST, DELETE and the PUT of an object with a fresh name may be sent again, so the client retries them
  (jittered exponential backoff on 429, 5xx, timeouts and broken connections, up to ``retry_timeout``).
* ``put_if_absent`` is sent once. A repeat by the client could meet the object that its own first try wrote and report
  it as somebody else's; only ``DeltaLog``, which can look for its own commit id, may decide to send it again.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import obstore
from obstore import exceptions as obs
from obstore.store import LocalStore, MemoryStore, S3Store, from_url

from brokerless.errors import AccessDenied, BucketNotFound, ConfigError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

    from brokerless.settings import Settings

REQUEST_TIMEOUT_S: Final = 10.0
MAX_OBJECT_BYTES: Final = 2**30
"""Of an object that is read whole, into memory: far above what producers and compaction write."""

_NATIVE_CHAIN: Final = {
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
}
"""With one of these in the environment (Lambda, ECS, EKS) the object store finds credentials by itself."""

RETRY_TIMEOUT_S: Final = 30.0
_RETRY: Final[RetryConfig] = {
    # So many that the time decides. Each wait is drawn between the first one and ``base`` times the last one; with a
    # base of 2 they hardly grow, and twelve of them were over in less than a second.
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
    "backoff": {"init_backoff": timedelta(milliseconds=20), "max_backoff": timedelta(seconds=3), "base": 3},
}
# Some of them come with status 400, which the client does not take for a refusal.
_REFUSALS: Final = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_NO_BUCKET: Final = "<Code>NoSuchBucket</Code>"
_ADDRESS: Final = re.compile(r"\w+://\S+")
_PAGE: Final = 1000  # what one LIST answers
_ONCE: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}

Outcome = Literal["created", "exists", "unknown"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's path relative to the store, its size in bytes, and when it was last written (epoch seconds)."""

    path: str
    size: int
    modified_s: float


class Store(Protocol):
    """What the log needs of a store. Tests and simulations bring their own."""

    uri: str
    requests: Counter[str]
    """Requests sent by this process, by kind: GET, PUT, LIST, DELETE (retries inside the client not counted)."""

    def get(self, path: str) -> bytes:
        """The object's bytes; raises FileNotFoundError if it is absent."""

    def put(self, path: str, data: bytes) -> None:
        """Writes the object, over an existing one if there is one."""

    def put_if_absent(self, path: str, data: bytes) -> Outcome:
        """One conditional PUT. ``unknown`` says that it may or may not have been applied, now or later."""

    def exists(self, path: str) -> bool:
        """Whether the object is there now."""

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below ``prefix/``, in the order of their paths on stores that have one."""

    def folders(self) -> Sequence[str]:
        """Names of the folders at the top."""

    def delete(self, paths: Sequence[str]) -> None:
        """Deletes the objects; those already gone are no error."""


class ObstoreStore:
    """``Store`` on S3, Google Cloud Storage, Azure Blob Storage, a local folder or memory, by obstore."""

    def __init__(self, uri: str, retrying: ObjectStore, once: ObjectStore) -> None:
        self.uri = uri
        self.requests: Counter[str] = Counter()
        self._retrying = retrying
        self._once = once

    def get(self, path: str) -> bytes:
        """As ``Store.get``."""
        self.requests["GET"] += 1
        try:
            answer = obstore.get(self._retrying, path)
            size = answer.meta["size"]
            if size > MAX_OBJECT_BYTES:
                msg = (
                    f"{self.uri}/{path} has {size} bytes; objects of up to {MAX_OBJECT_BYTES} are read. "
                    "Its writer must write fewer rows at a time."
                )
                raise StoreError(msg)
            return answer.bytes().to_bytes()
        except StoreError:
            raise
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise self._named(error, "GET", path) from None
            raise FileNotFoundError(path) from None
        except Exception as error:
            raise self._named(error, "GET", path) from error

    def put(self, path: str, data: bytes) -> None:
        """As ``Store.put``."""
        self.requests["PUT"] += 1
        try:
            obstore.put(self._retrying, path, data, use_multipart=len(data) > 64 * 2**20)
        except Exception as error:
            raise self._named(error, "PUT", path) from error

    def put_if_absent(self, path: str, data: bytes) -> Outcome:
        """As ``Store.put_if_absent``."""
        self.requests["PUT"] += 1
        try:
            obstore.put(self._once, path, data, mode="create", use_multipart=False)
        except (obs.AlreadyExistsError, obs.PreconditionError):
            return "exists"
        except Exception as error:
            named = self._named(error, "PUT", path)
            # A refusal or a missing bucket is an answer; anything else leaves open what happened.
            if isinstance(named, AccessDenied | BucketNotFound | ConfigError):
                raise named from error
            return "unknown"
        return "created"

    def exists(self, path: str) -> bool:
        """As ``Store.exists``."""
        self.requests["GET"] += 1
        try:
            obstore.head(self._retrying, path)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._named(error, "HEAD", path) from error
        return True

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """As ``Store.list``."""
        try:
            for chunk in obstore.list(self._retrying, prefix, offset=after, chunk_size=_PAGE):
                self.requests["LIST"] += 1
                for item in chunk:
                    yield ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp())
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise self._named(error, "LIST", prefix) from None
            return  # a local folder that is not there
        except Exception as error:
            raise self._named(error, "LIST", prefix) from error

    def folders(self) -> Sequence[str]:
        """As ``Store.folders``."""
        self.requests["LIST"] += 1
        try:
            return sorted(str(p) for p in obstore.list_with_delimiter(self._retrying)["common_prefixes"])
        except Exception as error:
            raise self._named(error, "LIST", "") from error

    def delete(self, paths: Sequence[str]) -> None:
        """As ``Store.delete``."""
        self.requests["DELETE"] += 1
        try:
            obstore.delete(self._retrying, list(paths))
        except FileNotFoundError:
            if len(paths) > 1:
                for path in paths:
                    self.delete([path])
        except Exception as error:
            raise self._named(error, "DELETE", paths[0]) from error

    def _named(self, error: Exception, verb: str, path: str) -> StoreError | ConfigError:
        text = str(error)
        place = f"{self.uri}/{path}"
        if _NO_BUCKET in text:
            bucket = urlsplit(self.uri).netloc
            return BucketNotFound(f"The bucket {bucket!r} of {self.uri} does not exist; create it or change the root.")
        code = next((code for code in _REFUSALS if f"<Code>{code}</Code>" in text), "")
        if code or isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError):
            return AccessDenied(
                f"The store refused {verb} {place}{f' ({code})' if code else ''}; "
                "check the credentials and their permissions."
            )
        # The first line says what happened; the rest is the client's debug output, with the endpoint's details.
        first = text.splitlines()[0][:300] if text else type(error).__name__
        # There is no code for this. Without addresses: a lost answer names a topic that may be called "credentials".
        said = _ADDRESS.sub("", first.replace(path, "")).lower()
        if "missingregion" in said or "credential" in said:
            return ConfigError(f"No usable credentials for {self.uri}: {first}. Set AWS_ACCESS_KEY_ID or a profile.")
        return StoreUnavailable(f"{verb} {place} failed after retries for up to {RETRY_TIMEOUT_S:.0f} s: {first}")


def open_store(settings: Settings) -> ObstoreStore:
    """The store at the settings' root. One per process and settings, so that connections are shared.

    Nothing is sent yet.
    """
    # The pid is part of the key: a connection pool does not survive a fork.
    return _open(settings, os.getpid())


@lru_cache(maxsize=32)
def _open(settings: Settings, pid: int) -> ObstoreStore:
    try:
        return ObstoreStore(settings.root, _client(settings, _RETRY), _client(settings, _ONCE))
    except (obs.BaseError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:300]
        msg = f"No store can be opened at {settings.root[:200]!r} ({first}); correct the root or the store's settings."
        raise ConfigError(msg) from None


def _client(settings: Settings, retry: RetryConfig) -> ObjectStore:
    parts = urlsplit(settings.root)
    if parts.scheme == "file":
        return LocalStore(parts.path, mkdir=True)
    if parts.scheme == "memory":
        return _memory(settings.root)
    client: ClientConfig = {
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=3),
        "allow_http": bool(settings.endpoint and settings.endpoint.startswith("http://")),
    }
    if parts.scheme != "s3":
        return from_url(settings.root, client_options=client, retry_config=retry)
    config: S3Config = {"region": settings.region}
    provider = None
    if settings.endpoint:
        config |= {"endpoint": settings.endpoint, "virtual_hosted_style_request": False}
    if settings.access_key and settings.secret_key:
        config |= {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key}
        if settings.session_token:
            config["session_token"] = settings.session_token
    elif not _NATIVE_CHAIN & os.environ.keys():
        provider = _boto3_credentials()
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        config=config,
        client_options=client,
        retry_config=retry,
        credential_provider=provider,
    )


def _boto3_credentials() -> Boto3CredentialProvider | None:
    """Where the environment names no credentials, those that the AWS command line would take (files, SSO, a role).

    Glue's workers get theirs in a way that only AWS's own libraries promise to know. Without boto3, or if it finds
    none, the object store's own chain is left, which asks the machine.
    """
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    try:
        return Boto3CredentialProvider()
    except ValueError:
        return None
    except BotoCoreError as error:
        msg = f"No usable AWS credentials: {error} Check AWS_PROFILE and the files in ~/.aws."
        raise ConfigError(msg) from error


def create_bucket(settings: Settings) -> None:
    """Creates the root's bucket if it is missing. For local servers; on a cloud, buckets are infrastructure's.

    Raises:
        StoreUnavailable, AccessDenied: the server did not let it.
    """
    if not settings.root.startswith("s3://"):
        return
    # PUT /<bucket> creates it. A client that takes its endpoint as the bucket's own address ("virtual hosted") signs
    # exactly that URL for an object of the bucket's name.
    server = S3Store(
        settings.bucket,
        config={
            "region": settings.region,
            "endpoint": settings.endpoint or "",
            "virtual_hosted_style_request": True,
            "access_key_id": settings.access_key or "",
            "secret_access_key": settings.secret_key or "",
        },
        client_options={"allow_http": True},
    )
    url = obstore.sign(server, "PUT", settings.bucket, timedelta(minutes=1))
    if settings.profile == "embedded":
        url = url.partition("?")[0]  # it knows no keys and refuses signed URLs of those that it does not know
    try:
        # Straight to the server, which is local: not through a proxy that the environment names.
        opener = build_opener(ProxyHandler({}))
        with opener.open(Request(url, method="PUT"), timeout=REQUEST_TIMEOUT_S):  # noqa: S310  # Settings admits http(s)
            return
    except HTTPError as error:
        if error.code == 409:
            return  # it is there
        if error.code in {401, 403}:
            msg = (
                f"The server at {settings.endpoint} refused to create the bucket {settings.bucket!r} "
                f"(HTTP {error.code}); check the credentials."
            )
            raise AccessDenied(msg) from None
        msg = f"The server at {settings.endpoint} could not create the bucket {settings.bucket!r}: HTTP {error.code}."
        raise StoreUnavailable(msg) from None
    except OSError as error:
        msg = (
            f"No S3 server answers at {settings.endpoint} ({error}). Start one with 'brokerless up', "
            "or set AWS_ENDPOINT_URL to the one to use."
        )
        raise StoreUnavailable(msg) from None


@lru_cache(maxsize=32)
def _memory(root: str) -> MemoryStore:
    return MemoryStore()
