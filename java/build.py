"""Build brokerless/spark/realtime/bridge.jar from these sources; ``--check`` compares instead of writing.

Needs a JDK 17 and the pyspark of requirements.lock. The same JDK builds the same bytes: no debug information, sorted
names, one time for all files. ``BUILT_WITH`` is the JDK of the committed jar; another JDK may order constants
differently, so with another one ``--check`` compares only the names of the classes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
JAR = HERE.parent / "brokerless" / "spark" / "realtime" / "bridge.jar"
BUILT_WITH = "javac 17.0.15"
MAX_BYTES = 50_000


def build() -> bytes:
    """Return the bytes of a new jar."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise SystemExit("pyspark is missing: 'make setup' installs it.")
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.java"))
        options = [
            "--release",
            "17",
            "-g:none",
            "-Xlint:all,-path,-processing,-serial,-classfile",
            "-Werror",
            "-proc:none",
        ]
        jars = Path(spark.origin).with_name("jars")
        subprocess.run(["javac", *options, "-cp", f"{jars}/*", "-d", folder, *sources], check=True, cwd=HERE)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
            for path in sorted(Path(folder).rglob("*.class")):
                info = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                info.create_system = 3
                jar.writestr(info, path.read_bytes())
    return buffer.getvalue()


def content(jar: bytes) -> dict[str, bytes]:
    """Return the jar's classes by name, without the differences of packing."""
    with zipfile.ZipFile(io.BytesIO(jar)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def main() -> int:
    """Build or check the jar, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the committed jar differs from a new one")
    check = parser.parse_args().check
    made = build()
    if len(made) > MAX_BYTES:
        print(f"The jar has {len(made)} bytes; the limit is {MAX_BYTES}.", file=sys.stderr)
        return 1
    if not check:
        JAR.write_bytes(made)
        print(f"{JAR.relative_to(HERE.parent)}: {len(made)} bytes, sha256 {hashlib.sha256(made).hexdigest()}")
        return 0
    java = subprocess.run(["javac", "-version"], check=True, capture_output=True, text=True).stdout.strip()
    kept = JAR.read_bytes()
    if java != BUILT_WITH:
        same = content(kept).keys() == content(made).keys()
        print(f"Built with {java}, but the committed jar with {BUILT_WITH}: compared only the names of its classes.")
    else:
        same = content(kept) == content(made)
    if not same:
        print("The jar does not match the sources: run 'make jar' and commit the result.", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
