"""The jars of peers, from Maven Central, each pinned by its SHA-256.

Ivy, which is part of pyspark, downloads them. ``BROKERLESS_IVY_SETTINGS`` names a file with Ivy settings for another
repository, such as a company's mirror.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import quoteattr

from brokerless.spark.delta import EXCLUDES, PACKAGES
from brokerless.spark.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Sequence

FETCH_S: Final = 300.0
IVY_SETTINGS: Final = "BROKERLESS_IVY_SETTINGS"

_FETCH_DELTA: Final = """
import pathlib, sys
from brokerless.settings import Settings
from brokerless.spark.delta import delta_session
folder = pathlib.Path(sys.argv[1])
delta_session(Settings(profile="embedded", root=folder.as_uri(), state_dir=folder), name="fetch").stop()
"""

# The artifacts that Maven resolves for org.apache.kafka:kafka_2.13 in the scope "runtime", and slf4j-simple. Each group
# is followed by its lines "artifact:version sha256".
_BROKER_JARS: Final = """
at.yawk.lz4
  lz4-java:1.10.1 a58a84c4271e50df4c96ed916ccb7e48a869f8ed9cdcda1ad5d3d4c33b0214a3
com.dynatrace.hash4j
  hash4j:0.22.0 23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e
com.fasterxml.jackson.core
  jackson-annotations:2.19.4 ab26383fa3c10c0df1ffd1bb035d81161c059b1af71927d73c24473c058baa16
  jackson-core:2.19.4 466ae4dc4f7054f51525f4211df411d9a64d65cc169995d32bf49e20e6f586e5
  jackson-databind:2.19.4 b781c431be870deb0bf84421e99e774c256a701f4ba678df80248f55cd16ff74
com.fasterxml.jackson.dataformat
  jackson-dataformat-csv:2.19.4 fc06cf56909e43e0cdc84ad5e23069fcc4d503a8833bda348f47e50e8f1ac92c
  jackson-dataformat-yaml:2.19.4 998e652806c49ca59e2b6432c4edc37580c4702cb6189d10e6053d0b7982c2e7
com.fasterxml.jackson.datatype
  jackson-datatype-jdk8:2.19.4 c0e0dc3039f9a37a099b2602838f833ea8c15c56445a0eb5463d0c7e0c355da2
com.github.ben-manes.caffeine
  caffeine:3.2.0 ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7
com.github.luben
  zstd-jni:1.5.6-10 b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df
com.google.re2j
  re2j:1.8 7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7
com.typesafe.scala-logging
  scala-logging_2.13:3.9.5 87a3017d3f43e6ace7566fe4c3d615134c6914ff871c8d64bb32ca1d996d0545
com.yammer.metrics
  metrics-core:2.2.0 6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c
commons-beanutils
  commons-beanutils:1.11.0 9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709
commons-collections
  commons-collections:3.2.2 eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8
commons-digester
  commons-digester:2.1 e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d
commons-logging
  commons-logging:1.3.5 6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4
commons-validator
  commons-validator:1.10.1 ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa
net.sf.jopt-simple
  jopt-simple:5.0.4 df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28
net.sourceforge.argparse4j
  argparse4j:0.7.0 65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56
org.apache.kafka
  kafka-clients:4.1.2 afe861c05067f4018a3148d73c1ed1e5fc90808757c15b043527d7e535a5d431
  kafka-coordinator-common:4.1.2 0e6697b6827fa635b4686ec9754b1c5583f4997e9bc0f33a8518f1dee518a454
  kafka-group-coordinator:4.1.2 1925a002ef7c527b72a0877ed0d9f3a5f88a08d130d1ed2bdfcc40457ded354b
  kafka-group-coordinator-api:4.1.2 781f932fb3e3824420e7554ef745b57e1827dd801cfc71bf8fd31eef56e60638
  kafka-metadata:4.1.2 ccc29f5423cf5fbe63b47871dbce00a16e05a38bd0d531b3bf21e5c71ba54fac
  kafka-raft:4.1.2 01f6717d07472b577a1cfe1cdf4d098b14a1dae4e35574164712801bd2a55cce
  kafka-server:4.1.2 2b849f1c9d3d9a08a5ea4c2f0479c552592cd770d72263d8d1610701a9b3e8d4
  kafka-server-common:4.1.2 0f1d8fb9478ca0e3eea23b81064749738b9bff705704067e2fe8d62047e5fc07
  kafka-share-coordinator:4.1.2 fffacfaa46e7f25696f673035f86669422ae81889dfd28d8fec29500ee888310
  kafka-storage:4.1.2 902a08f775a9957e1546ecec8e22fbda73b84be9dfbdf04cce7a023dd60bf8b9
  kafka-storage-api:4.1.2 79910cc7d0e3d3a9d9ce6f30f6f000cd355321f604a0f6c73c948389d1b41457
  kafka-tools-api:4.1.2 6d4d6a33b0dcd2180e7489c58c0089f8fb502e7a095cdd46f57755df462f00ae
  kafka-transaction-coordinator:4.1.2 20939d46e1e65a34d6a59b447f0a5e63721678abbfdc948a5f9422930d71612c
  kafka_2.13:4.1.2 965af2d9c19be0c169110eb18468a0bee24e24d14071a57c7f8a57bc4d3f990e
org.apache.logging.log4j
  log4j-api:2.25.3 e886682920fa0fb9d6eb6395dcb4de088443f8646c89c5e5846e168e327f406f
  log4j-core:2.25.3 362b7fcb65b73aa46cc4bc53abf4eb216f444a83b5d1a037cb6fdfff0ae9f0f9
org.bitbucket.b_c
  jose4j:0.9.6 7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef
org.hdrhistogram
  HdrHistogram:2.2.2 22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8
org.jspecify
  jspecify:1.0.0 1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab
org.pcollections
  pcollections:4.0.2 2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef
org.scala-lang
  scala-library:2.13.16 1ebb2b6f9e4eb4022497c19b1e1e825019c08514f962aaac197145f88ed730f1
  scala-reflect:2.13.16 fb49ccd9cac7464486ab993cda20a3c1569d8ef26f052e897577ad2a4970fb1d
org.slf4j
  slf4j-api:1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
  slf4j-simple:1.7.36 2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f
org.xerial.snappy
  snappy-java:1.1.10.7 4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36
org.yaml
  snakeyaml:2.4 ef779af5d29a9dde8cc70ce0341f5c6f7735e23edff9685ceaa9d35359b7bb7f
"""
# The connector of pyspark 4.1.1; Maven Central has no newer version of its token provider.
_SPARK_JARS: Final = """
org.apache.commons
  commons-pool2:2.12.1 5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef
org.apache.kafka
  kafka-clients:3.9.1 7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9
org.apache.spark
  spark-sql-kafka-0-10_2.13:4.1.1 9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c
  spark-token-provider-kafka-0-10_2.13:4.0.0 f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """One file in Maven Central."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Return the file's name."""
        return f"{self.artifact}-{self.version}.jar"


def parse_jars(text: str) -> tuple[Jar, ...]:
    """Parse a list of groups, each followed by its indented ``artifact:version sha256`` lines."""
    jars, group = [], ""
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            group = line
            continue
        name, sha256 = line.split()
        jars.append(Jar(group, *name.split(":"), sha256))
    return tuple(jars)


BROKER_JARS: Final = parse_jars(_BROKER_JARS)
SPARK_JARS: Final = parse_jars(_SPARK_JARS)


def fetch(jars: Sequence[Jar], folder: Path) -> list[Path]:
    """Return the jars in a folder; missing or damaged ones are downloaded first.

    Args:
        jars: the jars; only one version of an artifact.
        folder: created if missing.

    Returns:
        The paths of the jars, in order.

    Raises:
        OSError: the jars cannot be downloaded or written.
        ValueError: a jar does not have the pinned SHA-256; it is deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in jars if _sha256(folder / jar.file) != jar.sha256]
    if missing:
        print(f"fetching {len(missing)} jars from Maven Central, once", file=sys.stderr, flush=True)
        # In another folder until they are checked; on the same disk, so that a move is atomic.
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            _resolve(missing, Path(draft))
            for jar in missing:
                found = _sha256(Path(draft, jar.file))
                if found != jar.sha256:
                    raise ValueError(f"{jar.file} must have the pinned SHA-256 {jar.sha256}, got {found}.")
                Path(draft, jar.file).replace(folder / jar.file)
    return [folder / jar.file for jar in jars]


def fetch_delta(cache: Path) -> str | None:
    """Let Spark download the jars of its Delta connector (25 MB) into Ivy's cache, once; return the reason if it fails.

    A stamp in ``cache`` records the success.
    """
    key = hashlib.sha256(repr((PACKAGES, EXCLUDES)).encode()).hexdigest()[:12]
    stamp = cache / f"delta-jars-{key}"
    if stamp.exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run([sys.executable, "-c", _FETCH_DELTA, folder])
        except OSError as error:
            return f"Delta's jars cannot be downloaded: {error}"
    cache.mkdir(parents=True, exist_ok=True)
    stamp.touch()
    return None


def _resolve(jars: Sequence[Jar], folder: Path) -> None:
    """Run Ivy for these jars without their dependencies, with its own cache, because a shared one may be damaged."""
    wanted = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)} "
        'transitive="false" conf="default"/>'
        for jar in jars
    )
    module = folder / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="brokerless" module="benchmarks"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    have = Path(spec.origin).parent / "jars"
    path = [str(jar) for pattern in ("ivy-*.jar", "commons-cli-*.jar") for jar in have.glob(pattern)]
    command = [str(find_java_home() / "bin" / "java"), "-cp", os.pathsep.join(path), "org.apache.ivy.Main", "-warn"]
    if settings := os.environ.get(IVY_SETTINGS):
        command += ["-settings", settings]
    command += ["-ivy", str(module), "-cache", str(folder / "cache")]
    _run([*command, "-retrieve", f"{folder}/[artifact]-[revision].[ext]"])


def _run(command: Sequence[str]) -> None:
    """Run a command.

    Raises:
        OSError: the command failed; the text has the end of its output.
    """
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {FETCH_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise OSError((error.stdout + error.stderr).strip()[-3000:]) from error


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
