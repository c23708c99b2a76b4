"""Who may import what: a small Lambda, a fast start and a synth without Spark depend on it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDARD_ONLY = [
    "settings",
    "schema",
    "schema_files",
    "offsets",
    "errors",
    "metrics/__init__",
    "metrics/catalogue",
    "metrics/meter",
    "clock",
    "version",
    "log/entries",
    "spark/progress",
    "producer/partitioner",
    "cost/bill",
    "cost/prices",
    "cost/workload",
    "cost/estimate",
    "cost/items",
    "cost/stage",
    "examples/timezone/messages",
]
ROOMS = [
    ("version", "errors", "offsets", "clock", "settings", "schema", "schema_files", "forks", "deadlines", "metrics"),
    ("store", "bucket", "cost"),
    ("columns",),
    ("log",),
    ("topics", "alter", "groups", "lag", "maintenance"),
    ("producer", "consumer"),
    ("ingest", "export", "dlq", "verify", "aws"),
    ("client",),
    ("spark",),
    ("local",),
    ("testing", "examples"),
    ("cli",),
]
"""The modules and packages of the library, the lowest first. Each imports only what is beside it or below it."""
ONLY_IN = {
    "pyspark": ("brokerless/spark/", "glue_jobs/"),
    "aws_cdk": ("infra/",),
    "aws_lambda_powertools": ("lambdas/",),
    "typer": ("brokerless/cli/",),
    "deltalake": ("brokerless/maintenance/checkpoints.py", "brokerless/spark/"),
    "pandas": (),
    "polars": (),
    "duckdb": (),
    "pyarrow": ("brokerless/spark/", "brokerless/cli/", "glue_jobs/"),
}
NOBODY_IMPORTS = ("brokerless.cli", "infra", "lambdas", "benchmarks", "tests")
LIBRARIES = ("brokerless", "glue_jobs", "lambdas", "infra")


def imports(path: Path, *, run_time_only: bool = False) -> set[str]:
    """The modules that a file imports anywhere; without those for type checkers if ``run_time_only``."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if run_time_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        todo.extend(ast.iter_child_nodes(node))
    return found


def files() -> list[str]:
    return sorted(str(p.relative_to(ROOT)) for top in LIBRARIES for p in (ROOT / top).rglob("*.py"))


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("name", STANDARD_ONLY)
def test_these_import_the_standard_library_only(name: str) -> None:
    allowed = {f"brokerless.{other.replace('/', '.')}" for other in STANDARD_ONLY}
    for module in imports(ROOT / "brokerless" / f"{name}.py", run_time_only=True):
        if within(module, "brokerless"):
            is_package = (ROOT / module.replace(".", "/")).is_dir()
            assert is_package or any(within(module, other) for other in allowed), f"{name} imports {module}"
        else:
            assert module.split(".")[0] in sys.stdlib_module_names, f"{name} imports {module}"


@pytest.mark.parametrize("file", files())
def test_heavy_packages_stay_where_they_belong(file: str) -> None:
    for module in imports(ROOT / file, run_time_only=True):
        for package, places in ONLY_IN.items():
            assert not within(module, package) or file.startswith(places), f"{file} imports {module}"


@pytest.mark.parametrize("file", files())
def test_nothing_imports_what_is_built_on_top(file: str) -> None:
    for module in imports(ROOT / file):
        for package in NOBODY_IMPORTS:
            own = file.startswith(package.replace(".", "/") + "/")
            assert own or not within(module, package), f"{file} imports {module}"


def library() -> dict[str, Path]:
    """Every module of the library by its name."""
    found = {}
    for path in (ROOT / "brokerless").rglob("*.py"):
        found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_the_root_of_the_library_stays_small_and_each_of_its_rooms_has_a_place() -> None:
    names = {path.stem for path in (ROOT / "brokerless").glob("*.py")}
    assert len(names) <= 16
    places = {name for level in ROOMS for name in level}
    folders = {path.parent.name for path in (ROOT / "brokerless").glob("*/__init__.py")}
    assert places == (names - {"__init__"}) | folders


def test_a_room_imports_only_from_rooms_beside_it_and_below_it() -> None:
    level = {name: number for number, names in enumerate(ROOMS) for name in names}
    free = {f"brokerless.{name.replace('/', '.')}" for name in STANDARD_ONLY}
    for name, path in library().items():
        if name == "brokerless":
            continue
        for module in imports(path, run_time_only=True):
            if not module.startswith("brokerless.") or any(within(module, other) for other in free):
                continue
            if room(module) in level:
                assert level[room(module)] <= level[room(name)], f"{name} imports {module}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = library()
    needs = {name: imports(path, run_time_only=True) & modules.keys() for name, path in modules.items()}
    # A package is named by each import of what is in it, and loads nothing itself.
    needs = {name: {one for one in found if modules[one].name != "__init__.py"} for name, found in needs.items()}
    while free := [name for name, found in needs.items() if not found]:
        for name in free:
            del needs[name]
        needs = {name: found - set(free) for name, found in needs.items()}
    assert not needs, f"these import each other: {needs}"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run("import sys, brokerless; print(*sorted({m.split('.')[0] for m in sys.modules}))").split()
    assert "brokerless" in loaded
    assert not {"obstore", "arro3", "pyarrow", "deltalake", "pyspark", "typer"} & set(loaded)


def test_every_public_name_can_be_loaded() -> None:
    run("import brokerless\nfor name in brokerless.__all__: getattr(brokerless, name)")


def test_producer_consumer_and_log_need_no_heavy_packages(tmp_path: Path) -> None:
    code = f"""
import sys
for name in ("pyarrow", "deltalake", "pyspark", "numpy", "polars", "duckdb", "pandas"):
    sys.modules[name] = None  # importing it raises ImportError
from brokerless import Consumer, Producer, Schema, Settings, create_topic, delete_topic, list_topics, open_store
settings = Settings(profile="aws", root="file://{tmp_path}/topics")
store = open_store(settings)
create_topic(store, "t", Schema.parse("a string, at timestamp, d decimal(4,2)"), partitions=2)
with Producer("t", settings=settings, key="a", producer_id="p") as producer:
    producer.send([{{"a": str(n), "at": "2026-01-01T00:00:00Z", "d": "1.25"}} for n in range(9)], sequence=0)
    producer.enqueue([{{"a": "last"}}]).result(30)
with Consumer("t", start="beginning", settings=settings) as consumer:
    rows = 0
    while rows < 10:
        rows += sum(batch.data.num_rows for batch in consumer.poll(30))
print(rows, len(list_topics(store)))
delete_topic(store, "t")
"""
    assert run(code).split() == ["10", "1"]
