"""The end of Spark's JVM has a name, and nothing else gets it."""

from __future__ import annotations

import socket

import pytest

from brokerless.errors import PipelineError
from brokerless.spark.failures import lost_jvm_named


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_call_to_a_jvm_that_is_gone() -> None:
    clientserver = pytest.importorskip("py4j.clientserver")
    parameters = clientserver.JavaParameters(port=free_port(), auto_convert=True)
    gateway = clientserver.ClientServer(parameters, clientserver.PythonParameters(port=0))
    try:
        with pytest.raises(PipelineError, match="Spark's JVM has ended"), lost_jvm_named():
            gateway.jvm.java.lang.System.currentTimeMillis()
    finally:
        gateway.shutdown()


@pytest.mark.parametrize("error", [ConnectionRefusedError("the store's"), BrokenPipeError(), ValueError("text")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, lost_jvm_named():
        raise error
    assert raised.value is error
