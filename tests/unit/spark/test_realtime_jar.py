"""The jar that the wheel carries: small, and what the sources in ``java/`` say."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from brokerless.spark.session import BRIDGE_JAR

ROOT = Path(__file__).parents[3]


def test_the_jar_has_our_classes_and_nothing_else() -> None:
    assert BRIDGE_JAR.stat().st_size < 50_000
    with zipfile.ZipFile(BRIDGE_JAR) as jar:
        names = jar.namelist()
        times = {info.date_time for info in jar.infolist()}
    assert "brokerless/realtime/Provider.class" in names
    assert all(name.startswith("brokerless/realtime/") and name.endswith(".class") for name in names)
    assert names == sorted(names)
    assert times == {(1980, 1, 1, 0, 0, 0)}  # or no build would be like another


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK to build the jar with")
def test_the_jar_is_what_the_sources_say() -> None:
    build = subprocess.run(
        [sys.executable, ROOT / "java" / "build.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert build.returncode == 0, build.stdout + build.stderr
