"""``brokerless doctor``: its checks, and how they are shown."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from brokerless.local.doctor import clock_skew
from brokerless.log.log import DeltaLog
from brokerless.schema import Schema
from brokerless.topics import create_topic
from brokerless.verify.holes import find_hole
from tests.support.checkpoints import clean_up, write_checkpoint
from tests.support.fakes import FakeClock, FakeStore


def doctor(cli):
    """The checks by their names."""
    return {check["name"]: check for check in json.loads(cli("doctor", "--json").stdout)}


def test_doctor_says_what_it_found(cli):
    checks = doctor(cli)
    assert {checks[name]["verdict"] for name in ("python", "bucket", "conditional PUT")} == {"ok"}
    assert {check["verdict"] for check in checks.values()} <= {"ok", "warn", "skip"}


def test_doctor_fails_with_a_fix(cli):
    result = cli("doctor", "--root", "nonsense", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert checks["settings"]["verdict"] == "fail"
    assert "s3://bucket" in checks["settings"]["detail"]
    assert checks["bucket"]["verdict"] == "skip"


def test_doctor_finds_a_hole_in_a_log(cli):
    store = cli.store
    create_topic(store, "good", Schema.parse("s string"))
    create_topic(store, "t", Schema.parse("s string"), partitions=2)
    log = DeltaLog(store, "t.1")
    log.append([], {"a": 0})
    checkpoint = write_checkpoint(log)
    for n in range(1, 4):
        log.append([], {"a": n})
    clean_up(log, checkpoint)
    assert doctor(cli)["logs"]["verdict"] == "ok"
    hole = store.get(log.entry_path(3))
    store.delete([log.entry_path(3)])
    logs = doctor(cli)["logs"]
    assert (logs["verdict"], logs["detail"]) == ("fail", "the log of t.1 lacks entry 3, although entry 4 exists")
    assert "brokerless verify t'" in logs["fix"]
    store.put(log.entry_path(3), hole)
    store.delete([f"t.1/_delta_log/{checkpoint:020d}.checkpoint.parquet"])
    assert "names checkpoint 1, which does not exist" in doctor(cli)["logs"]["detail"]


def test_a_log_is_looked_at_for_holes_with_one_list():
    store = FakeStore(FakeClock())
    assert find_hole(store, "t") is None
    for version in range(1, 6):
        store.put(f"t/_delta_log/{version:020d}.json", b"{}")
    assert find_hole(store, "t") == "the log of t lacks entry 0, although entry 1 exists"
    store.put("t/_delta_log/00000000000000000002.checkpoint.parquet", b"")  # its hint was lost
    store.requests.clear()
    assert find_hole(store, "t") is None
    assert store.requests == {"GET": 1, "LIST": 1}


@pytest.mark.parametrize(
    ("mode", "line", "verdict"),
    [
        (0o644, "AWS_SECRET_ACCESS_KEY=hidden", "warn"),
        (0o600, "AWS_SECRET_ACCESS_KEY=hidden", "ok"),
        (0o644, "AWS_REGION=eu-west-1", "ok"),
    ],
)
def test_doctor_warns_of_secrets_that_others_can_read(cli, tmp_path, mode, line, verdict):
    (tmp_path / ".env").write_text(f"{line}\n")
    (tmp_path / ".env").chmod(mode)
    settings = doctor(cli)["settings"]
    assert settings["verdict"] == verdict
    assert (settings["fix"] == "chmod 600 .env") == (verdict == "warn")
    assert "hidden" not in cli("doctor").output


@pytest.mark.parametrize("offset_s", [0.0, 30.0, -30.0])
def test_clock_skew_is_measured_against_the_servers_date(offset_s):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)  # as S3 answers who is not signed in
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        skew, error_s = clock_skew(f"http://127.0.0.1:{server.server_port}", now=lambda: time.time() - offset_s)
    finally:
        server.shutdown()
        server.server_close()
    assert abs(skew - offset_s) <= error_s + 0.05
