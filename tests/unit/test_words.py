"""Words that were replaced do not come back: in identifiers and docstrings, one word for one idea."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

NAMES = {
    "Answer": "HttpResponse",
    "Desired": "DesiredPipeline",
    "EngineBusy": "ServiceBusy",
    "Incoming": "SourceMessage",
    "Ingest": "BatchIngest, or TopicIngest in infra",
    "Place": "JobLocation",
    "Post": "HttpRequest",
    "Posts": "HttpIngest",
    "Producers": "ProducerPool",
    "Record": "PipelineState",
    "Sighting": "CanaryResult",
    "Taken": "IngestResult",
}
"""Whole identifiers, and the name to use."""

PARTS = {
    "door": "source",
    "doors": "sources",
    "engine": "runs_on or service, for what runs a pipeline's job on AWS",
    "kept": "retained, stored, accepted",
    "kit": "the name brokerless, or nothing",
    "letters": "dead_letters, rejected",
    "morning": "warning",
    "place": "offset, position, location",
    "places": "offsets, positions, locations",
    "sighting": "result",
    "sweep": "garbage collection, collect_garbage",
    "swept": "collected",
    "take": "add, ingest, next_batch, drain",
    "told": "notified, acknowledged",
    "way": "alternative, source",
    "ways": "alternatives, sources",
}
"""Parts of identifiers, as ``door`` in ``door_name`` and ``DoorName``, and the word to use."""

TEXT = {
    "door": "source",
    "doors": "sources",
    "kept": "retained, stored, accepted",
    "letters": "dead letters, if that is what they are",
    "morning": "warning",
    "places": "offsets, positions, locations",
    "sighting": "result",
    "sweep": "garbage collection",
    "sweeps": "garbage collections",
    "swept": "collected",
    "told": "notified, acknowledged",
}
"""Words of docstrings, and the word to use."""

FINISHED = (
    "brokerless/spark",
    "brokerless/examples",
    "benchmarks",
    "brokerless/aws",
    "brokerless/cli",
    "brokerless/consumer",
    "brokerless/cost",
    "brokerless/export",
    "brokerless/ingest",
    "brokerless/local",
    "brokerless/maintenance",
    "brokerless/metrics",
    "brokerless/producer",
    "brokerless/testing",
    "brokerless/verify",
    "glue_jobs",
    "infra",
    "lambdas",
    "tools",
)
"""Where each of these words was replaced. A package is added when it is finished."""

LIBRARY = ("brokerless", *(folder for folder in FINISHED if not folder.startswith("brokerless/")))

EVERYWHERE = {"door", "doors", "kit", "morning", "sighting", "sweep", "sweeps", "swept", "ways", *NAMES}
"""The words that were replaced in the whole library."""

ALLOWED = {
    "dead letters": "",
    "upper-case letters": "",
    "lower-case letters": "",
    "small letters": "",
    "letters, digits": "",
}
"""Phrases of docstrings in which a word has another meaning."""

EXCEPTIONS = {
    ("benchmarks", "engine"): "how a pipeline runs",
    ("brokerless/aws/environment.py", "sweep"): "the variable BROKERLESS_SWEEP_EVERY_S keeps its name",
    ("brokerless/cli", "engine"): "the options --engine keep their name",
    ("brokerless/local/durable.py", "Answer"): "the answer of the S3 server that it wraps",
    ("brokerless/cost/workload.py", "engine"): "the option --engine keeps its name",
    ("brokerless/maintenance", "kit"): "the name of the writer in its rules",
    ("brokerless/metrics/meter.py", "take"): "brokerless/spark/telemetry.py calls it",
    ("brokerless/spark", "engine"): "how a pipeline runs",
    ("brokerless/testing/faults.py", "Answer"): "a fault: an answer of the store",
    ("brokerless/testing/wire.py", "take"): "bytes of a buffer",
    ("brokerless/verify", "engine"): "the field engineInfo of Delta",
}
"""Places that may use a word, and why."""


def files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in LIBRARY for path in (ROOT / folder).rglob("*.py"))


def applies(file: str, word: str) -> bool:
    return word in EVERYWHERE or file.startswith(tuple(f"{folder}/" for folder in FINISHED))


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that the code itself gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string that stands alone, with its line: docstrings of modules, classes, functions and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def parts(name: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, the word and the word to use instead, for each replaced word in a file."""
    tree = ast.parse(text)
    for line, name in identifiers(tree):
        if name in NAMES:
            yield line, name, NAMES[name]
        is_dead_letters = "dead_letters" in name.lower() or "DeadLetters" in name
        for part in parts(name) & PARTS.keys():
            if not (part == "letters" and is_dead_letters):
                yield line, part, PARTS[part]
    for line, found in docstrings(tree):
        plain = re.sub(r"``[^`]*``", "", found).lower()
        for phrase in ALLOWED:
            plain = re.sub(phrase.replace(" ", r"[\s-]+"), "", plain)
        for word in sorted(set(re.findall(r"[a-z_]+", plain)) & TEXT.keys()):
            yield line, word, TEXT[word]


def is_excepted(file: str, word: str) -> bool:
    return any(word == known and file.startswith(path) for path, known in EXCEPTIONS)


@pytest.mark.parametrize("file", files())
def test_replaced_words_do_not_come_back(file: str) -> None:
    found = [
        f"{file}:{line}: {word!r} was replaced by: {instead}"
        for line, word, instead in findings((ROOT / file).read_text())
        if applies(file, word) and not is_excepted(file, word)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("class Posts: ...", "Posts"),
        ("class DoorName: ...", "door"),
        ("def door_name(): ...", "door"),
        ("def f(doors): ...", "doors"),
        ("letters = 1", "letters"),
        ("self.told = 1", "told"),
        ("class KitFunction: ...", "kit"),
        ("def run(sweep): ...", "sweep"),
        ('"""The doors of a topic."""', "doors"),
        ('def f():\n    """Who is told."""', "told"),
        ('x = 1\n"""How many letters are kept."""', "kept"),
    ],
)
def test_a_planted_word_is_found(code: str, word: str) -> None:
    assert word in [found for _, found, _ in findings(code)]


@pytest.mark.parametrize(
    "code",
    [
        "class DeadLetters: ...",
        "def create_ingest_dead_letters(): ...",
        "DEAD_LETTERS = 1",
        "indoors = 1",
        '"""Use ``doors``, dead letters, and letters, digits."""',
        "f(sweep=1)",  # the parameter's owner decides on its name
    ],
)
def test_other_words_are_left_alone(code: str) -> None:
    assert list(findings(code)) == []


def test_each_exception_is_needed() -> None:
    used = {
        (path, word)
        for file in files()
        for _, word, _ in findings((ROOT / file).read_text())
        for path, known in EXCEPTIONS
        if word == known and file.startswith(path)
    }
    assert used == EXCEPTIONS.keys()


def test_finished_packages_are_there() -> None:
    assert all(any((ROOT / folder).rglob("*.py")) for folder in LIBRARY + FINISHED)
