"""Files and the docstrings of modules stay short: long ones are split, and explanations go to docs/."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.test_words import FINISHED

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 400
MOST_DOCSTRING_LINES = 12


def files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in FINISHED for path in (ROOT / folder).rglob("*.py"))


def docstring(file: str) -> str:
    return ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""


def without_tables(text: str) -> str:
    """A docstring without its tables: they are read by their rows."""
    return re.sub(r"^=+ +=+.*?(?=\n\n|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", files())
def test_a_long_file_says_why_in_its_first_line(file: str) -> None:
    lines = len((ROOT / file).read_text().splitlines())
    assert lines <= MOST_LINES or "because" in docstring(file).splitlines()[0], f"{file} has {lines} lines"


@pytest.mark.parametrize("file", files())
def test_the_docstring_of_a_module_is_short(file: str) -> None:
    lines = len(without_tables(docstring(file)).strip().splitlines())
    assert lines <= MOST_DOCSTRING_LINES, f"{file}: {lines} lines; move the explanation to docs/"


def test_tables_do_not_count() -> None:
    text = "One.\n\n====  ====\na     b\n====  ====\n1     2\n====  ====\n\nTwo."
    assert without_tables(text).split() == ["One.", "Two."]
