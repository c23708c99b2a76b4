"""Proof that a store honours conditional PUTs, which every commit rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerless.clock import SYSTEM, Clock
from brokerless.errors import ConditionalPutUnsupported, StoreUnavailable

if TYPE_CHECKING:
    from brokerless.store import Store

PROBE: Final = "_probe"
"""The object with which a store is asked for conditional PUTs. It stays: who may write need not be able to delete."""

_PROBES: Final = 5  # an answer may be lost


def check_conditional_put(store: Store, *, within: str = "_brokerless", clock: Clock = SYSTEM) -> None:
    """Asks the store to create an object that is there, and insists that it refuses.

    The object stays for the next who asks. An answer that was lost says nothing, so then the store is asked again.

    Args:
        store: which one.
        within: the folder for that object: whoever may write one topic only has to be able to ask.
        clock: sleeping.

    Raises:
        ConditionalPutUnsupported: it did not refuse.
        StoreUnavailable: it gave no answer that tells.
    """
    path = f"{within}/{PROBE}"
    created = 0
    for attempt in range(_PROBES):
        answer = store.put_if_absent(path, b"probe")
        created += answer == "created"
        # Nobody removes it, so the second time it was there, whatever the first answer was.
        if answer == "exists" and attempt:
            return
        if created > 1:
            raise ConditionalPutUnsupported(
                f"The store at {store.uri} ignores 'If-None-Match: *': two writers could overwrite each other's "
                "commits. Use AWS S3, MinIO, SeaweedFS, Google Cloud Storage or Azure Blob Storage."
            )
        if answer == "unknown":
            clock.backoff(attempt)
    raise StoreUnavailable(
        f"{store.uri} did not say in {_PROBES} tries whether it honours 'If-None-Match: *', without which two writers "
        "could overwrite each other's commits. Try again; AWS S3, MinIO and SeaweedFS do."
    )
