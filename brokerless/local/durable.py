"""Patches for ministack: what the embedded server acknowledges is on the disk; a failed write is an error.

ministack keeps an object in memory, tries to write it to a file, logs a failure and answers 200; after a restart such
an object would be missing. With these patches, an object is acknowledged after its bytes and its name are synced (as
far as the file system supports it); a failure returns status 507 or 500 and undoes the change in memory. Other failures
that ministack only logs are raised as well: an unreadable object must not look empty, and an unreadable folder must not
look like a topic without entries.

The patches replace functions of ministack in its process, so its version is checked.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = tuple[int, dict[str, str], bytes]
    Dispatch = Callable[..., Answer]

MINISTACK: Final = "1.5.33"
"""The supported version, as in pyproject.toml."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROPERTIES: Final = ".meta.json"


def check_version() -> None:
    """Raise if the installed ministack is not the version that these patches were written for.

    Raises:
        RuntimeError: it is another version.
    """
    found = importlib.metadata.version("ministack")
    if found != MINISTACK:
        raise RuntimeError(
            f"ministack {found} is installed, and the embedded server needs {MINISTACK}: with another version, "
            "acknowledged objects could be lost. Install it: pip install 'brokerless[local]'."
        )


def raise_logged_failures() -> None:
    """Make ministack raise errors that it would only log.

    Call it before importing its S3 module, which reads the stored objects.
    """
    logging.getLogger("s3").addFilter(_raise)


def make_durable(s3: Any) -> None:
    """Replace the functions of ministack's S3 module that write objects and answer requests."""

    def folder_of(bucket: str) -> Path:
        return Path(s3.DATA_DIR, s3.get_account_id(), bucket)

    def persist(bucket: str, key: str, record: dict[str, Any]) -> None:
        path = Path(s3._object_disk_path(bucket, key))
        properties = {**s3._object_meta_from_record(record), **s3._key_history_meta(bucket, key), "key": key}
        store(path, record["body"], json.dumps(properties).encode())
        record["body"] = None  # from now on it is read from the disk
        # Keys that are not valid file names are stored under another name, which may have changed.
        s3._remove_key_files(s3._other_key_disk_path(str(folder_of(bucket)), key, str(path)))

    def write(path: str, data: Any, *, text: bool = False) -> None:
        _write(Path(f"{path}.tmp"), data.encode() if text else data)
        Path(f"{path}.tmp").replace(path)
        sync_folder(Path(path).parent)

    remove = s3._remove_key_files

    def remove_durably(path: str | None) -> None:
        present = path is not None and (os.path.isfile(path) or os.path.isfile(path + _PROPERTIES))  # noqa: PTH113
        remove(path)
        if present:
            sync_folder(Path(str(path)).parent)

    s3._persist_object = persist
    s3._atomic_write = write  # for versions and delete markers
    s3._remove_key_files = remove_durably
    s3._dispatch = refusing(s3._dispatch, s3)


def refusing(dispatch: Dispatch, s3: Any) -> Dispatch:
    """Return ``dispatch`` with error handling: if the disk fails, answer 5xx and undo the change in memory."""

    def dispatching(method: str, bucket: str, key: str, *request: Any) -> Answer:
        known = s3._buckets.get(bucket)
        record = None if known is None else known["objects"].get(key)
        versions = s3._object_versions.get((bucket, key))
        versions = None if versions is None else [dict(version) for version in versions]
        try:
            answer = dispatch(method, bucket, key, *request)
            if method == "PUT" and known is None and bucket in s3._buckets:
                sync_upwards(Path(s3.DATA_DIR, s3.get_account_id(), bucket), Path(s3.DATA_DIR))
            return answer
        except OSError as error:
            _put_back(s3._object_versions, (bucket, key), versions)
            if known is None:
                s3._buckets.pop(bucket, None)
            else:
                _put_back(known["objects"], key, record)
            reason = f"{error.strerror or error}; the embedded server did not execute the request."
            if error.errno in _FULL:
                return s3._error("XMinioStorageFull", reason, 507, f"/{bucket}/{key}")  # type: ignore[no-any-return]
            return s3._error("InternalError", reason, 500, f"/{bucket}/{key}")  # type: ignore[no-any-return]

    return dispatching


def store(path: Path, data: bytes | None, properties: bytes) -> None:
    """Write an object's files so that they survive a power failure; on an error, no file of a new object remains.

    Args:
        path: the object's file; the file of its properties is in the same folder.
        data: the content, or None if it stays as it is.
        properties: of the object, as ministack reads them at its start; without them it derives them from the content.

    Raises:
        OSError: the files could not be written.
    """
    beside = Path(f"{path}{_PROPERTIES}")
    files = [(target, content) for target, content in ((path, data), (beside, properties)) if content is not None]
    is_new = not path.exists()
    try:
        make_folders(path.parent)
        for target, content in files:
            # Properties that a power failure damages are derived from the content, so they need no sync.
            _write(Path(f"{target}.tmp"), content, sync=data is None or target is path)
        if data is not None and not is_new:
            # A power failure between the two renames must not leave new content with the old size.
            beside.unlink(missing_ok=True)
        for target, _ in files:
            Path(f"{target}.tmp").replace(target)
        sync_folder(path.parent)
    except BaseException:
        for target, _ in files:
            Path(f"{target}.tmp").unlink(missing_ok=True)
            if is_new and data is not None:
                target.unlink(missing_ok=True)  # otherwise a refused object would exist after a restart
        raise


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, and sync their names."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def sync_upwards(folder: Path, top: Path) -> None:
    """Sync the names of a folder and of its parents, up to those in ``top``."""
    while folder != top:
        folder = folder.parent
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync the directory entries of a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(path: Path, content: bytes, *, sync: bool = True) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _raise(record: logging.LogRecord) -> bool:
    error = sys.exc_info()[1]
    if error is not None and str(record.msg).startswith("Failed to "):
        raise error
    return True


def _put_back(into: Any, key: object, value: object) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value
