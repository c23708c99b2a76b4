"""The operations on an object store that the log needs, with one error class for each kind of failure.

* GET, LIST, DELETE and the PUT of an object with a new name may be repeated, so the client retries them (jittered
  exponential backoff on 429, 5xx, timeouts and broken connections, for up to 30 s).
* ``put_if_absent`` is sent once. A repeat by the client could find the object of its own first attempt and report it
  as another writer's; only ``DeltaLog``, which can look for its own commit id, may decide to send it again.

With ``within_s``, a call returns or fails at about that time. Without it, retries stop after 30 s, and the running
request ends by its own timeout: 10 s, or more if its body needs more at ``SLOWEST_LINK``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as obs
from obstore.store import LocalStore, MemoryStore, S3Store, from_url

from brokerless.clock import SYSTEM, Clock
from brokerless.deadlines import left_s
from brokerless.errors import AccessDenied, BucketNotFound, ConfigError, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from obstore import GetOptions, UpdateVersion
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

    from brokerless.settings import Settings

REQUEST_TIMEOUT_S: Final = 10.0
"""The longest time that a request may take, in addition to the transfer of its body."""

SLOWEST_LINK: Final = 256 * 2**10
"""The slowest network that is supported, in bytes per second; on a slower one, requests with large bodies fail."""

MAX_OBJECT_BYTES: Final = 2**30
"""The largest object that is read into memory; producers and compaction write much smaller ones."""

_NATIVE_CHAIN: Final = {
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
}
"""The variables (of Lambda, ECS, EKS) with which the object store client finds credentials itself."""

RETRY_TIMEOUT_S: Final = 30.0
_RETRY: Final[RetryConfig] = {
    # So many that only the time limits them. Each wait is drawn between the first one and ``base`` times the last one:
    # with a base of 2 they hardly grow, and twelve of them took less than a second.
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
    "backoff": {"init_backoff": timedelta(milliseconds=20), "max_backoff": timedelta(seconds=3), "base": 3},
}
_TIME: Final = "RequestTimeTooSkewed"
# Some of them have status 400, which the client does not report as a permission error.
_REFUSALS: Final = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", _TIME)
_CLOCK: Final = (
    "this machine's clock is wrong by more than 15 minutes, perhaps because it was suspended. Set the clock. "
    "Nothing was written: the store compares requests with its own clock."
)
_FORBIDDEN: Final = "status code: 403"  # a LIST has no error class for it
_NO_BUCKET: Final = "<Code>NoSuchBucket</Code>"
_ADDRESS: Final = re.compile(r"\w+://\S+")
_PAGE: Final = 1000  # objects in the answer of one LIST
_ONCE: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}

# A client's timeout is fixed and each client has its own connections, so there are only a few clients. While more than
# 10 s are left, all requests except those with large bodies use the same one.
_TIMEOUTS_S: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 1000.0, 5000.0)
_LATE_S: Final = 0.2
"""The longest time by which a request may exceed the deadline: with 4.9 s left, it gets a timeout of 5 s."""

_LIST_TRIES: Final = 3
_SMALL: Final = 2**20  # bytes; a larger body gets additional time
_STREAMED: Final = 2**20  # bytes; a retry of GET continues a larger object where the first attempt stopped
# Errors that do not come from the store: a retry would get the same one.
_FINAL: Final = (ValueError, TypeError, obs.InvalidPathError, obs.NotSupportedError, obs.UnknownConfigurationKeyError)

Outcome = Literal["created", "exists", "unknown"]
Tag = tuple[str | None, str | None]
"""An object's ETag and version: another write of the object has another one."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's path relative to the store, its size in bytes, and the time of its last write (epoch seconds)."""

    path: str
    size: int
    modified_s: float


class Store(Protocol):
    """The interface to an object store; tests and simulations have their own implementations.

    ``within_s`` limits the time of one call, retries included, to at most 0.3 s more. With None, the call lasts as long
    as the store's client retries.
    """

    uri: str
    requests: Counter[str]
    """The number of requests of this process by kind (GET, PUT, LIST, DELETE), without retries inside the client."""

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        """Return the object's bytes; raise FileNotFoundError if it does not exist."""

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        """Write the object; an existing one is replaced."""

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        """Send one conditional PUT. ``unknown`` means that it may or may not have been applied, now or later."""

    def get_tagged(self, path: str, *, within_s: float | None = None) -> tuple[bytes, Tag]:
        """Return the object's bytes and its tag; raise FileNotFoundError if it does not exist."""

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        """Send one PUT on the condition that the object has this tag (None: that it does not exist).

        Returns:
            ``created`` and the new tag; or ``exists`` (it is another one, or gone) or ``unknown``, and None.
        """

    def exists(self, path: str, *, within_s: float | None = None) -> bool:
        """Return whether the object exists now."""

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix/``, ordered by path on stores that have an order."""

    def folders(self) -> Sequence[str]:
        """Return the names of the folders at the top level."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete the objects; missing ones are not an error."""


class ObstoreStore:
    """A ``Store`` on S3, Google Cloud Storage, Azure Blob Storage or memory, implemented with obstore.

    Args:
        uri: the root.
        connect: creates a client. Its first argument is the timeout of one request (None: only a stalled transfer ends
            it), its second whether the client retries.
        clock: time, randomness and sleeping, for retries of calls with a deadline.
    """

    def __init__(
        self, uri: str, connect: Callable[[float | None, bool], ObjectStore], *, clock: Clock = SYSTEM
    ) -> None:
        self.uri = uri
        self.requests: Counter[str] = Counter()
        self._connect = connect
        self._clock = clock
        self._clients: dict[tuple[float | None, bool], ObjectStore] = {}
        self._retrying = self._client(None, retrying=True)

    def get(self, path: str, *, within_s: float | None = None) -> bytes:
        """Implement ``Store.get``."""
        self.requests["GET"] += 1
        had = bytearray()
        size, tag = -1, None

        def fetch(client: ObjectStore) -> bytes:
            nonlocal size, tag
            if len(had) == size:
                return bytes(had)
            options: GetOptions = {"range": {"offset": len(had)}, "if_match": tag} if had else {}
            try:
                answer = obstore.get(client, path, options=options)
            except obs.PreconditionError:
                had.clear()  # the object was replaced: read it from the beginning
                raise
            size, tag = answer.meta["size"], answer.meta["e_tag"]
            if size > MAX_OBJECT_BYTES:
                raise StoreError(
                    f"{self.uri}/{path} has {size} bytes; the largest supported object has {MAX_OBJECT_BYTES}. "
                    "Let its writer write fewer rows per object."
                )
            if left_s(within_s) is None or size <= _STREAMED:
                return answer.bytes().to_bytes()
            for chunk in answer.stream(min_chunk_size=_STREAMED // 4):
                had.extend(chunk)
            return bytes(had)

        return self._ask("GET", path, fetch, within_s)

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        """Implement ``Store.put``."""
        self.requests["PUT"] += 1
        # Not with a deadline: each part of a multipart upload has its own timeout.
        parts = left_s(within_s) is None and len(data) > 64 * 2**20
        self._ask(
            "PUT", path, lambda client: obstore.put(client, path, data, use_multipart=parts), within_s, size=len(data)
        )

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        """Implement ``Store.put_if_absent``."""
        return self._put_once(path, data, "create", within_s)[0]

    def _put_once(
        self, path: str, data: bytes, mode: Literal["create"] | UpdateVersion, within_s: float | None
    ) -> tuple[Outcome, Tag | None]:
        self.requests["PUT"] += 1
        within_s = self._within_s("PUT", path, within_s)
        try:
            once = self._client(_timeout_s(len(data), within_s), retrying=False)
            written = obstore.put(once, path, data, mode=mode, use_multipart=False)
        except (obs.AlreadyExistsError, obs.PreconditionError):
            return "exists", None
        except FileNotFoundError as error:
            if _NO_BUCKET in str(error):
                raise self._named(error, "PUT", path) from None
            return "exists", None  # it was to be replaced, and is not there any more
        except Exception as error:
            named = self._named(error, "PUT", path)
            # A refusal or a missing bucket is a definite answer; after any other error the outcome is unknown.
            if isinstance(named, AccessDenied | BucketNotFound | ConfigError):
                raise named from error
            return "unknown", None
        return "created", (written["e_tag"], written["version"])

    def get_tagged(self, path: str, *, within_s: float | None = None) -> tuple[bytes, Tag]:
        """Implement ``Store.get_tagged``."""
        self.requests["GET"] += 1

        def fetch(client: ObjectStore) -> tuple[bytes, Tag]:
            answer = obstore.get(client, path)
            return answer.bytes().to_bytes(), (answer.meta["e_tag"], answer.meta["version"])

        return self._ask("GET", path, fetch, within_s)

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        """Implement ``Store.swap``."""
        if tag is None:
            return self._put_once(path, data, "create", within_s)
        e_tag, version = tag
        condition: UpdateVersion = {}
        if e_tag is not None:
            condition["e_tag"] = e_tag
        if version is not None:
            condition["version"] = version
        return self._put_once(path, data, condition, within_s)

    def exists(self, path: str, *, within_s: float | None = None) -> bool:
        """Implement ``Store.exists``."""
        self.requests["GET"] += 1
        try:
            self._ask("HEAD", path, lambda client: obstore.head(client, path), within_s)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Implement ``Store.list``."""
        for attempt in count():
            self.requests["LIST"] += 1
            client, left = self._listing(prefix)
            try:
                for page, chunk in enumerate(obstore.list(client, prefix, offset=after, chunk_size=_PAGE)):
                    self.requests["LIST"] += page > 0
                    for item in chunk:
                        yield ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp())
                        after = item["path"]
                return
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise self._named(error, "LIST", prefix) from None
                return  # a local folder that does not exist
            except Exception as error:
                # The client does not retry when an answer breaks off in the middle.
                named = self._named(error, "LIST", prefix)
                is_last = left is None and attempt == _LIST_TRIES - 1
                if is_last or not isinstance(named, StoreUnavailable) or isinstance(error, _FINAL):
                    raise named from error
            self._clock.backoff(attempt, base_s=0.05, cap_s=1.0 if left is None else min(1.0, left))

    def _listing(self, prefix: str) -> tuple[ObjectStore, float | None]:
        left = self._within_s("LIST", prefix, None)
        return self._retrying if left is None else self._client(_timeout_s(0, left), retrying=False), left

    def folders(self) -> Sequence[str]:
        """Implement ``Store.folders``."""
        self.requests["LIST"] += 1
        client, _ = self._listing("")
        try:
            return sorted(str(p) for p in obstore.list_with_delimiter(client)["common_prefixes"])
        except Exception as error:
            raise self._named(error, "LIST", "") from error

    def delete(self, paths: Sequence[str]) -> None:
        """Implement ``Store.delete``."""
        self.requests["DELETE"] += 1
        try:
            obstore.delete(self._retrying, list(paths))
        except FileNotFoundError:
            if len(paths) > 1:
                for path in paths:
                    self.delete([path])
        except Exception as error:
            raise self._named(error, "DELETE", paths[0]) from error

    def _client(self, timeout_s: float | None, *, retrying: bool) -> ObjectStore:
        key = timeout_s, retrying
        if (client := self._clients.get(key)) is None:
            client = self._clients.setdefault(key, self._connect(timeout_s, retrying))
        return client

    def _within_s(self, verb: str, path: str, within_s: float | None) -> float | None:
        """Return how long a request may take, by itself and by the deadline of its caller.

        Raises:
            StoreUnavailable: that is over; nothing was sent.
        """
        left = left_s(within_s)
        if left is not None and left <= 0 and (within_s is None or within_s > 0):
            raise StoreUnavailable(f"{verb} {self.uri}/{path} was not sent: the time of its caller was over.")
        return left

    def _ask(
        self, verb: str, path: str, send: Callable[[ObjectStore], _T], within_s: float | None, *, size: int = 0
    ) -> _T:
        """Send a request that may be repeated; ``size`` is the size of its body."""
        within_s = self._within_s(verb, path, within_s)
        began_s = self._clock.monotonic()
        attempt = 0
        while True:
            left_s = None if within_s is None else within_s - (self._clock.monotonic() - began_s)
            try:
                if left_s is not None:
                    return send(self._client(_timeout_s(size, left_s), retrying=False))
                # The size of an answer is not known in advance, so that only a stalled transfer ends a request.
                timeout_s = _timeout_s(size, None)
                return send(self._client(None if timeout_s <= REQUEST_TIMEOUT_S else timeout_s, retrying=True))
            except StoreError:
                raise
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise self._named(error, verb, path) from None
                raise FileNotFoundError(path) from None
            except Exception as error:
                named = self._named(error, verb, path, within_s)
                if within_s is None or not isinstance(named, StoreUnavailable) or isinstance(error, _FINAL):
                    raise named from error
                left_s = within_s - (self._clock.monotonic() - began_s)
                if left_s <= 0:
                    raise named from error
            attempt += 1
            self._clock.backoff(attempt, base_s=0.02, cap_s=min(1.0, left_s))

    def _named(self, error: Exception, verb: str, path: str, within_s: float | None = None) -> StoreError | ConfigError:
        text = str(error)
        url = f"{self.uri}/{path}"
        if _NO_BUCKET in text:
            bucket = urlsplit(self.uri).netloc
            return BucketNotFound(f"The bucket {bucket!r} of {self.uri} does not exist; create it or change the root.")
        code = next((code for code in _REFUSALS if f"<Code>{code}</Code>" in text), "")
        refused = isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError)
        if code or refused or _FORBIDDEN in text:
            return AccessDenied(
                f"The store refused {verb} {url}{f' ({code})' if code else ''}; "
                f"{_CLOCK if code == _TIME else 'check the credentials and their permissions.'}"
            )
        # The first line is the error; the others are the client's debug output with details of the endpoint.
        first = text.splitlines()[0][:300] if text else type(error).__name__
        # This error has no code. URLs are removed first: a topic in them may be called "credentials".
        said = _ADDRESS.sub("", first.replace(path, "")).lower()
        if "missingregion" in said or "credential" in said:
            return ConfigError(f"No usable credentials for {self.uri}: {first}. Set AWS_ACCESS_KEY_ID or a profile.")
        tried_s = RETRY_TIMEOUT_S if within_s is None else within_s
        return StoreUnavailable(f"{verb} {url} failed after retries for up to {tried_s:.3g} s: {first}")


def _timeout_s(size: int, left_s: float | None) -> float:
    """Return the timeout of a request with a body of ``size`` bytes: enough for it, and little more than ``left_s``."""
    enough_s = REQUEST_TIMEOUT_S if size <= _SMALL else REQUEST_TIMEOUT_S + size / SLOWEST_LINK
    fit = next((t for t in _TIMEOUTS_S if t >= enough_s), _TIMEOUTS_S[-1])
    if left_s is None:
        return fit
    return min(fit, max((t for t in _TIMEOUTS_S if t <= left_s + _LATE_S), default=_TIMEOUTS_S[0]))


class FileStore(ObstoreStore):
    """A ``Store`` in a local folder; a write is on the disk when the call returns, and survives a power failure.

    The client's own writes are not synced. So an object is written under a name that listings do not show (``.tmp#``
    and digits), synced, and renamed; then the folder is synced. ``within_s`` has no effect.
    """

    def __init__(self, uri: str, folder: Path, connect: Callable[[float | None, bool], ObjectStore]) -> None:
        super().__init__(uri, connect)
        self._folder = folder
        self._synced: set[Path] = set()  # folders whose names are synced

    def put(self, path: str, data: bytes, *, within_s: float | None = None) -> None:
        """Implement ``Store.put``."""
        self.requests["PUT"] += 1
        try:
            with self._written(path, data) as (written, target):
                written.replace(target)
                _sync_folder(target.parent)
        except (OSError, ValueError) as error:
            raise self._failed(error, path) from error

    def put_if_absent(self, path: str, data: bytes, *, within_s: float | None = None) -> Outcome:
        """Implement ``Store.put_if_absent``."""
        self.requests["PUT"] += 1
        created = False
        try:
            with self._written(path, data) as (written, target):
                target.hardlink_to(written)
                created = True
                _sync_folder(target.parent)
        except FileExistsError:
            return "exists"
        except (OSError, ValueError) as error:
            if created:
                return "unknown"
            raise self._failed(error, path) from error
        return "created"

    def get_tagged(self, path: str, *, within_s: float | None = None) -> tuple[bytes, Tag]:
        """Implement ``Store.get_tagged``; the tag is a hash of the bytes."""
        data = self.get(path)
        return data, _tag(data)

    def swap(
        self, path: str, data: bytes, tag: Tag | None, *, within_s: float | None = None
    ) -> tuple[Outcome, Tag | None]:
        """Implement ``Store.swap``; a lock of the folder keeps others out between reading and writing."""
        if tag is None:
            outcome = self.put_if_absent(path, data)
            return outcome, _tag(data) if outcome == "created" else None
        import fcntl

        folder = (self._folder / path).parent
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            return "exists", None
        except OSError as error:
            raise self._failed(error, path) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                unchanged = self.get_tagged(path)[1] == tag
            except FileNotFoundError:
                return "exists", None
            if not unchanged:
                return "exists", None
            self.put(path, data)
            return "created", _tag(data)
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[tuple[Path, Path]]:
        """Yield a temporary file with the synced bytes, and its final path; remove the temporary name at the end."""
        if {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"{path!r} is not the path of an object")
        target = self._folder / path
        self._make(target.parent)
        temporary = target.with_name(f".tmp#{secrets.randbits(64)}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary, target
        finally:
            temporary.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        if folder in self._synced and folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        # Sync the parents of existing folders, too: their creator may have crashed before it synced them.
        for parent in (folder, *folder.parents):
            _sync_folder(parent.parent)
            if parent == self._folder or parent in self._synced:
                break
        self._synced.add(folder)

    def _failed(self, error: Exception, path: str) -> StoreError:
        if isinstance(error, PermissionError):
            return AccessDenied(
                f"No permission to write {self.uri}/{path} ({error.strerror}); check the folder's owner and mode."
            )
        return StoreUnavailable(f"PUT {self.uri}/{path} failed: {error}")


def _tag(data: bytes) -> Tag:
    return hashlib.blake2b(data).hexdigest(), None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some file systems cannot sync folders
            raise
    finally:
        os.close(handle)


def open_store(settings: Settings) -> ObstoreStore:
    """Return the store at the settings' root; calls with the same settings share one store and its connections.

    No request is sent.
    """
    # The pid is part of the key: a connection pool does not survive a fork.
    return _open(settings, os.getpid())


@lru_cache(maxsize=32)
def _open(settings: Settings, pid: int) -> ObstoreStore:
    provider: list[Boto3CredentialProvider | None] = []

    def connect(timeout_s: float | None, retrying: bool) -> ObjectStore:
        if not provider:
            provider.append(_boto3_credentials(settings))
        return _client(settings, timeout_s, _RETRY if retrying else _ONCE, provider[0])

    parts = urlsplit(settings.root)
    try:
        if parts.scheme == "file":
            return FileStore(settings.root, Path(parts.path), connect)
        return ObstoreStore(settings.root, connect)
    except (obs.BaseError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ConfigError(
            f"No store can be opened at {settings.root[:200]!r} ({first}); correct the root or the store's settings."
        ) from None


def _client(
    settings: Settings, timeout_s: float | None, retry: RetryConfig, provider: Boto3CredentialProvider | None
) -> ObjectStore:
    parts = urlsplit(settings.root)
    if parts.scheme == "file":
        return LocalStore(parts.path, mkdir=True)
    if parts.scheme == "memory":
        return _memory(settings.root)
    client: ClientConfig = {
        "timeout": timedelta(seconds=timeout_s or _timeout_s(MAX_OBJECT_BYTES, None)),
        "connect_timeout": timedelta(seconds=min(3.0, timeout_s or 3.0)),
        "allow_http": bool(settings.endpoint and settings.endpoint.startswith("http://")),
    }
    if timeout_s is None:
        client["read_timeout"] = timedelta(seconds=REQUEST_TIMEOUT_S)
    if parts.scheme != "s3":
        return from_url(settings.root, client_options=client, retry_config=retry)
    config: S3Config = {"region": settings.region}
    if settings.endpoint:
        # Both names are set: the client prefers the second and would take it from the environment.
        config |= {"endpoint": settings.endpoint, "aws_endpoint_url_s3": settings.endpoint}
        config["virtual_hosted_style_request"] = False
    if settings.access_key and settings.secret_key:
        config |= {"access_key_id": settings.access_key, "secret_access_key": settings.secret_key}
        if settings.session_token:
            config["session_token"] = settings.session_token
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        config=config,
        client_options=client,
        retry_config=retry,
        credential_provider=provider,
    )


def _boto3_credentials(settings: Settings) -> Boto3CredentialProvider | None:
    """Return a provider of the credentials that the AWS CLI would use (files, SSO, a role), or None if there are none.

    Used if neither settings nor environment contain credentials; Glue workers get theirs in a form that only AWS's own
    libraries support. Without boto3, the object store's own chain is used, which asks the machine's metadata service.
    """
    keys = settings.access_key and settings.secret_key
    if not settings.root.startswith("s3:") or keys or _NATIVE_CHAIN & os.environ.keys():
        return None
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
        raise ConfigError(f"No usable AWS credentials: {error} Check AWS_PROFILE and the files in ~/.aws.") from error


@lru_cache(maxsize=32)
def _memory(root: str) -> MemoryStore:
    return MemoryStore()
