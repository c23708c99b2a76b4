"""Compare-and-swap on real S3 servers, and answers that are lost on the way."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import AccessDenied, BucketNotFound
from brokerless.store import open_store
from brokerless.testing import (
    Conflict,
    Denied,
    Fault,
    FaultProxy,
    LostAnswer,
    LostRequest,
    PreconditionFailed,
    Rule,
    Script,
    ServerError,
)
from tests.support.swaps import check_missing, check_swaps, race

if TYPE_CHECKING:
    from brokerless.settings import Settings


def test_a_swap_needs_the_tag_that_the_object_has(settings: Settings) -> None:
    check_swaps(open_store(settings))


def test_what_is_not_there_cannot_be_replaced(settings: Settings) -> None:
    check_missing(open_store(settings))


def test_one_of_sixteen_threads_wins_each_round(settings: Settings) -> None:
    race(open_store(settings))


@pytest.mark.parametrize("begun", [False, True], ids=["create", "replace"])
@pytest.mark.parametrize(
    ("fault", "outcomes", "applied"),
    [
        (LostRequest(), {"unknown"}, False),
        (LostAnswer(), {"unknown"}, True),
        (ServerError(), {"unknown"}, False),
        (ServerError(applied=True), {"unknown"}, True),
        (PreconditionFailed(applied=True), {"exists"}, True),
        (Conflict(), {"exists", "unknown"}, False),
    ],
    ids=lambda value: repr(value) if isinstance(value, Fault) else None,
)
def test_a_swap_is_sent_once_and_its_outcome_is_not_guessed(
    settings: Settings, fault: Fault, outcomes: set[str], applied: bool, begun: bool
) -> None:
    assert settings.endpoint
    with FaultProxy(settings.endpoint) as proxy:
        store = open_store(dataclasses.replace(settings, endpoint=proxy.endpoint))
        tag = store.swap("g/x", b"1", None)[1] if begun else None
        proxy.play(Script([Rule(fault, op="CONDITIONAL_PUT", key="g/x")]))
        outcome, new = store.swap("g/x", b"2", tag)
        assert outcome in outcomes
        assert new is None
        assert proxy.count("CONDITIONAL_PUT", "g/x") == 1 + begun
        assert (store.exists("g/x") and store.get("g/x") == b"2") == applied


def test_a_refused_swap_says_what_is_wrong(settings: Settings) -> None:
    assert settings.endpoint
    with FaultProxy(settings.endpoint) as proxy:
        proxy.play(Script([Rule(Denied(), op="CONDITIONAL_PUT")]))
        with pytest.raises(AccessDenied, match="g/x"):
            open_store(dataclasses.replace(settings, endpoint=proxy.endpoint)).swap("g/x", b"1", None)
    nowhere = open_store(dataclasses.replace(settings, root="s3://no-such-bucket"))
    with pytest.raises(BucketNotFound):
        nowhere.swap("g/x", b"1", None)
