"""The kit by way of the fault proxy, before real servers: nothing lost, nothing twice, and errors that say why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from brokerless import Consumer, Producer, Schema, create_topic, open_store
from brokerless.errors import AccessDenied, DeliveryFailed, StoreError
from brokerless.testing import (
    Chaos,
    ClockSkew,
    Conflict,
    Denied,
    Expired,
    Fault,
    FaultProxy,
    Latency,
    LostAnswer,
    LostRequest,
    PreconditionFailed,
    Reset,
    Rule,
    ServerError,
    SlowDown,
    StaleAbsence,
    Stalled,
    Truncated,
)

if TYPE_CHECKING:
    from brokerless import Settings

pytest_plugins = ["brokerless.testing.plugin"]
pytestmark = pytest.mark.faults

WAIT_S = 30.0
SENDS = 6

KEPT: list[Fault] = [
    LostAnswer(),
    LostRequest(),
    Stalled(0.05, applied=True),
    ServerError(applied=True),
    SlowDown(),
    Conflict(applied=True),
    PreconditionFailed(applied=True),
    Truncated(),
    ClockSkew(3600.0),
]
"""One of each sort; the grid plays every fault at every step."""


@pytest.fixture
def fault_server(settings: Settings) -> Settings:
    """Behind the proxy stand the servers of these tests: the embedded one, and MinIO where there is one."""
    return settings


def read_all(settings: Settings, topic: str = "t") -> list[int]:
    found: list[int] = []
    with Consumer(topic, start="beginning", settings=settings) as consumer:
        while batches := consumer.poll(0.2):
            found += [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]
    return found


@pytest.mark.parametrize("fault", KEPT, ids=repr)
def test_producer_and_consumer_keep_their_promises(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy, fault: Fault
) -> None:
    create_topic(open_store(fault_server), "t", Schema.parse("n long"))
    fault_proxy.play(Chaos(seed=5, rates={fault: 0.5}, in_a_row=2))
    with Producer("t", settings=fault_settings) as producer:
        for n in range(SENDS):
            producer.send({"n": [n]})
    assert read_all(fault_settings) == list(range(SENDS))
    assert fault_proxy.faults[fault.kind] > 0
    assert read_all(fault_server) == list(range(SENDS))


@pytest.mark.parametrize("fault", [LostAnswer(), ServerError(applied=True)], ids=repr)
def test_the_name_of_a_topic_is_not_taken_for_what_failed(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy, fault: Fault
) -> None:
    create_topic(open_store(fault_server), "credentials", Schema.parse("n long"))
    with Producer("credentials", settings=fault_settings) as producer:
        producer.send({"n": [0]})
        fault_proxy.add(Rule(fault, op="CONDITIONAL_PUT"))
        producer.send({"n": [1]})
    assert fault_proxy.faults[fault.kind] == 1
    assert read_all(fault_server, "credentials") == [0, 1]


def test_entries_that_are_absent_for_a_while(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy
) -> None:
    create_topic(open_store(fault_server), "t", Schema.parse("n long"))
    fault_proxy.add(Rule(StaleAbsence(within_s=WAIT_S), key="_delta_log/*", after=1, times=3))
    fault_proxy.add(Rule(LostAnswer(), op="CONDITIONAL_PUT", key="_delta_log/*2.json"))
    with Producer("t", settings=fault_settings) as producer:
        for n in range(SENDS):
            producer.send({"n": [n]})
    assert fault_proxy.faults["LostAnswer"] == 1
    found: list[int] = []
    with Consumer("t", start="beginning", settings=fault_settings) as consumer:
        while len(found) < SENDS:
            found += [n for batch in consumer.poll(WAIT_S) for n in pa.table(batch.data)["n"].to_pylist()]
    assert found == list(range(SENDS))
    assert fault_proxy.faults["StaleAbsence"] == 3


def test_an_object_that_is_absent_for_a_while_is_named_and_read_by_the_next_poll(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy
) -> None:
    create_topic(open_store(fault_server), "t", Schema.parse("n long"))
    with Producer("t", settings=fault_settings) as producer:
        producer.send({"n": [0]})
    fault_proxy.add(Rule(StaleAbsence(within_s=WAIT_S), key="*.parquet"))
    with Consumer("t", start="beginning", settings=fault_settings) as consumer:
        with pytest.raises(StoreError, match=r"\.parquet is in the log but not in the store"):
            consumer.poll(0)
        assert [n for batch in consumer.poll(0) for n in pa.table(batch.data)["n"].to_pylist()] == [0]


@pytest.mark.parametrize("fault", [Denied(), Expired(400)], ids=repr)
@pytest.mark.parametrize("key", ["*.parquet", "_delta_log/*2.json"])
def test_refused_credentials_are_named_and_it_goes_on_after(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy, fault: Fault, key: str
) -> None:
    create_topic(open_store(fault_server), "t", Schema.parse("n long"))
    with Producer("t", settings=fault_settings) as producer:
        producer.send({"n": [0]})
        fault_proxy.add(Rule(fault, op="PUT", key=key))
        with pytest.raises(DeliveryFailed) as caught:
            producer.send({"n": [1]})
        assert isinstance(caught.value.__cause__, AccessDenied)
        assert not caught.value.unknown
        producer.send({"n": [2]})
    assert read_all(fault_server) == [0, 2]


def test_two_producers_and_a_consumer_in_chaos(
    fault_server: Settings, fault_settings: Settings, fault_proxy: FaultProxy
) -> None:
    create_topic(open_store(fault_server), "t", Schema.parse("n long"))
    rates: dict[Fault, float] = {
        LostAnswer(): 0.05,
        LostRequest(): 0.05,
        Reset(applied=True): 0.05,
        ServerError(applied=True): 0.05,
        SlowDown(): 0.05,
        PreconditionFailed(applied=True): 0.05,
        Conflict(): 0.05,
        Truncated(): 0.05,
        Latency(0.01, tail_s=0.02): 0.1,
    }
    fault_proxy.play(Chaos(seed=11, rates=rates))
    sent = 25

    def produce(first: int) -> None:
        with Producer("t", settings=fault_settings, producer_id=f"p{first}") as producer:
            for n in range(sent):
                producer.send({"n": [first + n]}, sequence=n)

    def consume() -> list[int]:
        found: list[int] = []
        with Consumer("t", start="beginning", settings=fault_settings) as consumer:
            while len(found) < 2 * sent:
                batches = consumer.poll(WAIT_S)
                assert batches
                found += [n for batch in batches for n in pa.table(batch.data)["n"].to_pylist()]
        return found

    with ThreadPoolExecutor(3) as pool:
        reading = pool.submit(consume)
        for call in [pool.submit(produce, first) for first in (0, 1000)]:
            call.result(WAIT_S * 2)
        found = reading.result(WAIT_S)
    for first in (0, 1000):
        assert [n for n in found if n // 1000 == first // 1000] == list(range(first, first + sent))
    assert read_all(fault_server) == found
    assert len(fault_proxy.faults) >= 5
