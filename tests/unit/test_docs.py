"""What the documents say is there is there: links, commands, variables, names, and the examples run."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import shlex
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer.main

import brokerless.settings
from brokerless import Consumer, Producer, Schema, create_topic, errors, open_store
from brokerless.cli import application
from brokerless.settings import Settings
from brokerless.topics import create_dead_letters
from tools.pages import api

REPO = Path(__file__).parents[2]
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(REPO)) for page in PAGES]

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(kind, text) for kind, text in found if language in (None, kind)]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Links


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = unquote(target).partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_index_of_decisions_is_complete() -> None:
    folder = REPO / "docs" / "adr"
    decisions = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    assert [path.name[:4] for path in decisions] == [f"{n:04d}" for n in range(1, len(decisions) + 1)]
    index = (folder / "README.md").read_text()
    for path in decisions:
        assert f"]({path.name})" in index
        assert path.read_text().startswith(f"# {path.name[:4]}: ")
        for part in ("Context", "Decision", "What it costs", "When to revisit"):
            assert f"**{part}.**" in path.read_text(), f"{path.name}: {part}"


@each_page
def test_nothing_of_one_machine_is_in_them(page: Path) -> None:
    text = page.read_text()
    assert not re.findall(r"(?<![\w.])/(?:home|work|root|Users|tmp|var|opt|private|mnt)/\S*", text)
    assert not re.findall(r"\bTODO\b|\bFIXME\b|\.\./shared|(?:issue|PR) #?\d+", text)


# Commands


def shell_lines(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.text.splitlines() if line.strip()]


def commands_in(line: str) -> list[list[str]]:
    """The commands of one shell line, as words."""
    # docs/cli.md has remarks in brackets behind some examples.
    words = shlex.split(re.sub(r"\s{2,}\(.*\)$", "", line), comments=True)
    commands: list[list[str]] = [[]]
    for word in words:
        if word in {"|", "&&", ";"}:
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def find_verb(words: list[str]) -> tuple[Any, list[str], Any]:
    """The command that the words after ``brokerless`` name, the words left for it, and the root."""
    root = typer.main.get_command(application())
    options = {name: option for option in root.params for name in option.opts}
    command, rest = root, list(words)
    while rest and hasattr(command, "commands"):
        if rest[0] in options:
            del rest[: 1 if options[rest[0]].is_flag else 2]
            continue
        assert rest[0] in command.commands, f"no verb {rest[0]!r} in {words}"
        command = command.commands[rest.pop(0)]
    return command, rest, root


@each_page
def test_command_lines_can_be_parsed(page: Path) -> None:
    for line in shell_lines(page):
        for words in commands_in(line):
            if words[:1] == ["brokerless"]:
                command, rest, _ = find_verb(words[1:])
                if not hasattr(command, "commands"):
                    command.make_context(command.name, rest)


@each_page
def test_verbs_and_options_in_the_text_exist(page: Path) -> None:
    for code in inline_code(page):
        if not code.startswith("brokerless ") or code.startswith(("brokerless [", "brokerless VERB")):
            continue
        words = [word for word in shlex.split(code)[1:] if not re.fullmatch(r"\[?[A-Z]+\]?(\.\.\.)?|\[OPTIONS\]", word)]
        command, rest, root = find_verb(words)
        known = {name for parameter in [*command.params, *root.params] for name in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known | {"--help"}, code


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    lines = [*inline_code(page), *shell_lines(page)]
    used = {found[1] for line in lines if (found := re.match(r"make ([a-z-]+)", line))}
    assert used <= targets


@each_page
def test_files_named_in_the_text_exist(page: Path) -> None:
    folders = "brokerless|glue_jobs|lambdas|infra|benchmarks|tests|docs|local|scripts|tools"
    for code in inline_code(page):
        if re.fullmatch(rf"(?:{folders})/[\w./-]*", code):
            assert (REPO / code).exists(), code


# Names


def test_the_reference_says_each_public_name_and_what_it_takes() -> None:
    text = api.page()
    assert "## Producer\n" in text
    assert "### Consumer.seek()\n\n```\nseek(start: Start, *, topic: str | None = None" in text
    assert "- `OffsetOutOfRange`: " in text


def test_the_settings_table_is_that_of_the_settings() -> None:
    variable = r"``?([A-Z][A-Z0-9]*_[A-Z0-9_]+)``?"
    documented = set(re.findall(variable, brokerless.settings.__doc__ or ""))
    page = (REPO / "docs" / "operations.md").read_text()
    table = page.split("| variable |")[1].split("\n\n")[0]
    assert set(re.findall(variable, table)) == documented


def test_each_error_is_in_the_drawn_tree_and_each_named_error_exists() -> None:
    kinds = {n for n, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    drawn = set(re.findall(r"[├└]── (\w+)|^    (\w+)$", errors.__doc__ or "", re.MULTILINE))
    assert {a or b for a, b in drawn} == kinds
    text = "".join(page.read_text() for page in PAGES)
    named = re.findall(r"`([A-Z]\w+(?:Error|Fenced|Failed|Unknown|Committed|OutOfRange|Deleted|NotFound))`", text)
    assert set(named) - set(dir(builtins)) <= kinds


@pytest.mark.parametrize("marker", ["slow", "minio", "spark", "interop", "faults"])
def test_markers_are_explained(marker: str) -> None:
    assert f'"{marker}: ' in (REPO / "pyproject.toml").read_text()
    assert f"| `{marker}` |" in (REPO / "CONTRIBUTING.md").read_text()


# Examples


def python_blocks(name: str) -> list[str]:
    return [block.text for block in blocks(REPO / name, "python")]


@each_page
def test_python_examples_use_what_there_is(page: Path) -> None:
    for block in blocks(page, "python"):
        tree = ast.parse(block.text)
        imported: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("brokerless"):
                module = import_module(node.module or "")
                imported |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
                keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(imported[node.func.id]).bind(*node.args, **keywords)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings from the environment are a folder of this test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("BROKERLESS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BROKERLESS_ROOT", f"file://{tmp_path}/root")
    return Settings.load()


def run_block(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "<example>", "exec"), names)  # noqa: S102  # our own documents


def test_the_readmes_example_runs(here: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    run_block(python_blocks("README.md")[0], {})
    shown = capsys.readouterr().out
    assert re.search(r"partition \d: \d messages? from 1:0 to 1:\d", shown.replace("1 messages", "1 message"))
    assert "'/docs/api'" in shown
    assert "'/'" in shown


def test_the_examples_of_the_concepts_run(here: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    run_block(python_blocks("README.md")[0], names)
    for code in python_blocks("docs/concepts.md"):
        run_block(code, names)
    assert set(names["saved"]) == {"clicks/0", "clicks/1"}
    shown = capsys.readouterr().out
    assert "_produced_at" in shown
    assert "/docs/api" in shown


def test_the_examples_of_groups_run(here: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    run_block(python_blocks("README.md")[0], names)
    capsys.readouterr()
    first, second = python_blocks("docs/groups.md")
    run_block(first, names)
    assert "clicks" in capsys.readouterr().out
    run_block(second, names)
    committed, seconds, moves = capsys.readouterr().out.splitlines()
    assert "Offset(version=2, index=0)" in committed
    assert float(seconds) >= 0
    assert "Offset(version=1, index=0)" in moves


def test_the_examples_of_schemas_run(here: Settings) -> None:
    names: dict[str, Any] = {}
    for code in python_blocks("docs/schemas.md"):
        run_block(code, names)
    with Consumer("clicks", start="beginning", settings=here) as consumer:
        found = [ref for batch in consumer.poll(0) for ref in batch.data.column("ref").to_pylist()]
    assert found == [None, "mail"]
    names["client"].close()


@pytest.mark.parametrize("page", ["docs/retention.md", "docs/erasure.md"])
def test_the_examples_of_retention_and_erasure_run(here: Settings, page: str) -> None:
    for code in python_blocks(page):
        run_block(code, {})


def test_the_examples_of_operations_run(here: Settings) -> None:
    store = open_store(here)
    schema = Schema.parse("date string, message string")
    create_topic(store, "timezone1", schema)
    create_dead_letters(store, "timezone_unified", [schema])
    letter = {"_reason": "why", "_topic": "timezone1", "_partition": 0, "_offset": "1:0", "message": "7"}
    with Producer("timezone_unified.dead_letters", settings=here) as producer:
        producer.send([{**letter, "date": "2024-08-23T04:52:13 -0400"}, {**letter, "date": None}])
    for _ in range(2):  # a repair that is repeated repairs once
        for code in python_blocks("docs/operations.md"):
            run_block(code, {"settings": here})
    with Consumer("timezone1", start="beginning", settings=here) as consumer:
        rows = [row for batch in consumer.poll(0) for row in batch.data.column("date").to_pylist()]
    assert rows == ["2024-08-23 04:52:13 -0400"]


def test_the_examples_of_dead_letters_run(here: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(here)
    schema = Schema.parse("user string, n long")
    create_topic(store, "clicks", schema)
    create_dead_letters(store, "clean", [schema])
    letter = {"_topic": "clicks", "_partition": 0, "_offset": "1:0"}
    with Producer("clean.dead_letters", settings=here) as producer:
        rows = [{"user": "ada", "n": 9, "_reason": "n is too large: 9"}, {"user": "bo", "n": 1, "_reason": "no zone"}]
        producer.send([{**letter, **row} for row in rows])
    for code in python_blocks("docs/dead-letters.md"):
        run_block(code, {"settings": here})
    with Consumer("clicks", start="beginning", settings=here) as consumer:
        found = [
            pair
            for batch in [*consumer.poll(0), *consumer.poll(0)]
            for pair in zip(*(batch.data.column(name).to_pylist() for name in ("user", "n")), strict=True)
        ]
    assert found == [("ada", 0), ("bo", 1)]
    shown = capsys.readouterr().out
    assert "{'n is too large: 9': 1, 'no zone': 1}" in shown
    assert "Purged(messages=2, not_redriven=0" in shown
