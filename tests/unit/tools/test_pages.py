"""The generated documents: up to date in the checkout, and rewritten when they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.pages.__main__ import PAGES, main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_code_says(page: str) -> None:
    assert main([page, "--check"]) == 0


def test_a_page_that_is_out_of_date_is_found_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--check"], tmp_path) == 1
    assert "docs/metrics.md is not up to date: run 'python -m tools.pages metrics'." in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()
    assert main(["metrics"], tmp_path) == 0
    assert main(["metrics", "--check"], tmp_path) == 0
    (tmp_path / "docs" / "metrics.md").write_text("by hand")
    assert main(["metrics", "--check"], tmp_path) == 1
    assert (tmp_path / "docs" / "metrics.md").read_text() == "by hand"
