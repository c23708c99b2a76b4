"""What every Python worker of Spark does, and shares: cures for three stalls, and open stores.

They are measured on pyspark 4.1.1 (a warm job through a Python source went from 119 ms to 29 ms):

1. At the start of each task the worker calls ``importlib.invalidate_caches()``, and each ``zipimporter`` on its path
   reads its archive's directory again: ``pyspark.zip``, py4j, and the Spark core jar with 5,358 entries, 55 ms in all.
   Where pyspark is installed as a package, too, nothing more needs to come from those archives and they can be dropped
   from the path of the (reused) worker.
2. After each task the worker runs a full garbage collection, 30 ms over the objects of numpy, pyarrow and pyspark's own
   modules; at five batches a second that is a sixth of a core. Those objects never die, so they are taken out of the
   collector's sight once: ``gc.freeze``.
3. Loopback TCP between the JVM and the worker waits 40 ms for a delayed acknowledgement when the Arrow stream opens.
   Unix domain sockets do not: ``spark.python.unix.domain.socket.enabled`` in ``session``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import zipimport
from functools import lru_cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final

from brokerless.settings import Settings
from brokerless.store import ObstoreStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping


def cure_worker() -> None:
    """Makes the next tasks of this worker process fast (1 and 2 above).

    Call it in each task, after its imports: importing a part of pyspark brings an archive's importer back.
    """
    _freeze(os.getpid())
    folders = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    if not _is_installed(tuple(folders)):
        return
    sys.path[:] = folders
    for entry, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[entry]


@lru_cache(maxsize=1)
def _freeze(pid: int) -> None:
    gc.collect()
    gc.freeze()


@lru_cache(maxsize=1)
def _is_installed(folders: tuple[str, ...]) -> bool:
    return PathFinder.find_spec("pyspark", list(folders)) is not None


PART: Final = "brokerless.part"
"""A local property of Spark's jobs: which part of the batch they read, by table: (after this version, up to this)."""


def part_of_task() -> dict[str, tuple[int, int]] | None:
    """The part of the batch that this task is to read; None is all of it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(PART) if context is not None else None
    return json.loads(text) if text else None


def settings_option(settings: Settings) -> str:
    """The settings without secrets, as an option that Spark may show. Credentials travel by environment or chain."""
    return json.dumps(
        {
            "profile": settings.profile,
            "root": settings.root,
            "endpoint": settings.endpoint,
            "region": settings.region,
        }
    )


@lru_cache(maxsize=8)
def store_of(option: str) -> ObstoreStore:
    """The store that the option names, opened once in this process, with this process's credentials."""
    values: Mapping[str, str | None] = json.loads(option)
    environ = {
        "AWS_REGION": values["region"],
        "AWS_ENDPOINT_URL_S3": values["endpoint"],
    }
    return open_store(
        Settings.load(
            profile=values["profile"],
            root=values["root"],
            environ={**os.environ, **{k: v for k, v in environ.items() if v is not None}},
            dotenv=None,
        )
    )
