"""The way that Glue and EMR Serverless start a job: ``spark-submit``, settings as ``--conf``, credentials by boto3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerless.errors import TopicDeleted
from brokerless.local.jobs import job_script
from brokerless.spark import Pipeline, job, runner
from brokerless.spark.conf import SESSION_CONF, STREAM_CONF
from brokerless.spark.java import find_java_home
from tests.support.pipelines import create, delivered, send

if TYPE_CHECKING:
    from brokerless.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_the_example_runs_under_spark_submit(settings: Settings, tmp_path: Path) -> None:
    create(settings)
    send(settings, "timezone1", ["a", "b"])
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = brokerless\naws_secret_access_key = brokerless\n")
    submit = Path(sys.executable).with_name("spark-submit")
    conf = {**SESSION_CONF, **STREAM_CONF, "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    measured = tmp_path / "metrics.jsonl"
    command = [str(submit), "--master", "local[2]", *(w for k, v in conf.items() for w in ("--conf", f"{k}={v}"))]
    arguments = ["--profile", "aws", "--root", settings.root, "--state-dir", str(tmp_path / "state"), "--once"]
    arguments += ["--metrics-file", str(measured), "--JOB_NAME", "one of Glue's own"]
    # No keys in the environment: the files in ~/.aws are known to boto3 only.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BROKERLESS_"))}
    environ |= {
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_ENDPOINT_URL_S3": str(settings.endpoint),
        "AWS_REGION": settings.region,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [*command, str(job_script("timezone-etl")), *arguments],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(delivered(settings)[0]) == ["a", "b"]
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    sent = {line["metric"]: line for line in lines}
    assert sent["PipelineMessages"]["values"] == [2]
    assert sum(sent["S3Requests"]["values"]) > 4  # two log entries and two objects at the very least
    assert sent["EndToEndLatency"]["pipeline"] == "timezone-etl"


@pytest.mark.parametrize(("fails", "code"), [("_start", 2), ("_follow", 1)])
def test_a_pipeline_that_ran_did_not_fail_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str, code: int
) -> None:
    def deleted(*args: object, **options: object) -> None:
        raise TopicDeleted("s3://bucket/in was deleted.")

    for step in ("_start", "_follow"):
        monkeypatch.setattr(runner, step, deleted if step == fails else lambda *args, **options: (None, ""))
    pipeline = Pipeline("p", inputs=["in"], output="out", transform=lambda rows: rows)
    assert job.run_arguments(pipeline, ["--root", f"file://{tmp_path}"]) == code
