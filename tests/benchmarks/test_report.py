"""What the documents say about the benchmark is what is in the files of results, all of it, and the same each time."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pytest

from benchmarks import plots
from benchmarks.peers import PEERS
from benchmarks.result import Result, Window
from benchmarks.rows import collapse, comparable
from benchmarks.session import Session, Table, load_all, machine, versions
from tools.pages import benchmark as report
from tools.pages.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rows import Row

README = f"# before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"


def result(peer: str = "brokerless", rate: int = 10_000, p50: float | None = 0.2, **more: Any) -> Result:
    values: dict[str, Any] = {
        "label": peer.capitalize(), "hops": 2, "pacing": "smooth", "backend": "minio", "commit_ms": 100.0,
        "payload_bytes": 0, "partitions": 1, "producers": 2, "seconds": 60.0, "warm_up_s": 30.0,
    }  # fmt: skip
    if p50 is not None:
        values |= {f"p{n}_s": p50 * k for n, k in ((50, 1.0), (75, 1.2), (85, 1.5), (95, 2.0), (99, 3.0), (999, 4.0))}
        values |= {
            "max_s": p50 * 5,
            "cdf": [(p50 / 2, 0.1), (p50, 0.5), (p50 * 2, 0.95), (p50 * 3, 0.99), (p50 * 5, 1.0)],
            "windows": [Window(t, t + 5.0, 50_000, p50, p50 * 3, p50 * 5) for t in (0.0, 5.0, 10.0)],
            "cpu_s_per_million": 12.34, "requests_per_million": 4_321.0, "usd_per_million": 0.0456,
        }  # fmt: skip
    return Result(peer=peer, rate=rate, **(values | more))


def session(*runs: Result, **more: Any) -> Session:
    values: dict[str, Any] = {
        "name": "rates", "title": "By rate", "command": "python -m benchmarks --rates 10000",
        "started": "2026-11-21T10:00:00+00:00", "machine": {"cpu": "A processor", "cores": 2, "memory_gb": 16.5},
        "versions": {"pyspark": "4.1.1"}, "git": "abcdef012345", "prices": {"as_of": "2026-11-01"},
        "notes": ["The store is on the same machine."],
    }  # fmt: skip
    return Session(runs=list(runs), **(values | more))


MANY = session(
    *(result("brokerless", 10_000, p50, repeat=n) for n, p50 in enumerate((0.30, 0.20, 0.26), start=1)),
    result("brokerless", 30_000, 0.31),
    result("kafka", 10_000, 0.012),
    result("kafka", 10_000, 0.006, hops=1),
    result("kafka", 30_000, 1.7, problems=["3 messages lost", "2 messages duplicated"]),
    result("delta-rs", 10_000, None, skipped="no wheel | for this machine"),
    result("delta-rs", 30_000, None, skipped="no wheel | for this machine"),
)


def page(*sessions: Session, notes: str = "") -> str:
    return report.page(sessions, notes, ())


def line_of(text: str, *cells: str) -> list[str]:
    """The cells of the table's line that begins like this."""
    found = [line for line in text.splitlines() if line.startswith("| " + " | ".join(cells) + " |")]
    assert len(found) == 1, (cells, found)
    return found[0].strip("| ").split(" | ")


# Sessions


def test_a_session_survives_being_saved(tmp_path: Path) -> None:
    path = MANY.save(tmp_path / "results")
    assert path == MANY.path(tmp_path / "results")
    assert load_all(tmp_path / "results") == [MANY]
    assert json.loads(path.read_text())["runs"][0]["clean"] is True
    assert len(path.read_text().splitlines()) == len(MANY.runs) + 14


def test_tables_beside_the_runs_survive_and_are_shown(tmp_path: Path) -> None:
    table = Table("A backlog drained", [{"cores": 1, "messages/s": 123_456}, {"cores": 2, "messages/s": 200_000}])
    before = session(tables=[table])
    before.save(tmp_path)
    (after,) = load_all(tmp_path)
    assert after == before
    text = page(after)
    assert "A backlog drained:" in text
    assert line_of(text, "1", "123,456")


def test_the_machine_says_what_it_can_do_and_not_whose_it_is() -> None:
    found = machine()
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0
    assert found["cpu"]
    text = json.dumps([found, versions()])
    assert os.uname().nodename not in text
    assert "/" not in text.replace("w/", "")
    assert "pyspark" in versions()


# Rows


def test_repeats_are_one_row_with_median_and_extremes() -> None:
    rows = collapse(MANY.runs)
    assert [(r.one.peer, r.one.hops, r.one.rate, len(r.runs)) for r in rows] == [
        ("kafka", 1, 10_000, 1),
        ("kafka", 2, 10_000, 1),
        ("brokerless", 2, 10_000, 3),
        ("brokerless", 2, 30_000, 1),
        ("kafka", 2, 30_000, 1),
    ]
    spread = rows[2].spread("p50_s")
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == (0.20, 0.26, 0.30)
    typical = rows[2].typical("cdf")
    assert typical is not None
    assert typical.p50_s == 0.26


@pytest.mark.parametrize(
    "other", [{"pacing": "bursty"}, {"commit_ms": 1000.0}, {"payload_bytes": 9}, {"seconds": 90.0}, {"producers": 4}]
)
def test_runs_under_other_conditions_are_no_repeats(other: dict[str, Any]) -> None:
    assert len(collapse([result(), result(**other)])) == 2


def test_what_is_compared_has_the_same_conditions() -> None:
    rows = collapse([
        result("kafka"),
        result("brokerless"),
        result("brokerless", pacing="bursty"),
        result("brokerless", 30_000, pacing="bursty"),
        result("brokerless", 70_000, pacing="bursty"),
        result("pathway", published="elsewhere"),
    ])  # fmt: skip
    assert {(r.one.peer, r.one.pacing) for r in comparable(rows)} == {("kafka", "smooth"), ("brokerless", "smooth")}


def test_of_rows_that_qualify_the_most_repeated_is_compared_then_the_latest() -> None:
    once = collapse([result(p50=0.9, seconds=600.0, started="2026-11-22")])
    twice = collapse([result(p50=0.2, started="2026-11-20"), result(p50=0.2, started="2026-11-20", repeat=2)])
    later = collapse([result(p50=0.4, started="2026-11-23")])
    assert [r.one.p50_s for r in comparable([*once, *twice, *later])] == [0.2]
    assert [r.one.p50_s for r in comparable([*later, *once])] == [0.4]


def test_a_run_is_compared_at_the_length_that_most_peers_share() -> None:
    short = {"seconds": 45.0, "warm_up_s": 20.0}
    rows = collapse([result(**short), result("kafka", **short), result(p50=0.1, started="2027", seconds=1200.0)])
    assert {(row.one.peer, row.one.seconds) for row in comparable(rows)} == {("brokerless", 45.0), ("kafka", 45.0)}


# The page


def test_figures_are_in_the_table() -> None:
    cells = line_of(page(MANY), "Kafka", "10,000", "2")
    assert cells[3:] == ["1", "0.012", "0.024", "0.036", "0.060", "clean", "12.3", "4,321", "0.0456"]


def test_repeats_are_collapsed() -> None:
    text = page(MANY)
    cells = line_of(text, "**Brokerless**", "10,000", "2")
    assert cells[3:5] == ["3", "0.26 (0.20 to 0.30)"]
    assert line_of(text, "**Brokerless**", "30,000", "2")[4] == "0.31"
    assert "in the worst (Brokerless, 10,000/s, 2 hops)" in text


def test_runs_that_are_not_clean_stay_and_say_why() -> None:
    text = page(MANY)
    assert "not clean" in line_of(text, "Kafka", "30,000", "2")
    assert "- Kafka, 30,000/s, 2 hops: 3 messages lost; 2 messages duplicated\n" in text


def test_of_repeats_the_one_with_the_problem_is_named() -> None:
    text = page(session(result(), result(repeat=2, problems=["1 message lost"])))
    assert "clean in 1 of 2" in text
    assert "- Brokerless, 10,000/s, 2 hops, run 2: 1 message lost\n" in text


def test_peers_that_did_not_run_are_named_once_with_their_reason() -> None:
    assert page(MANY).count("- Delta-rs (10,000/s, 30,000/s): no wheel | for this machine\n") == 1


def test_settings_that_differ_are_columns_and_others_a_sentence() -> None:
    text = page(session(result(commit_ms=100.0), result(commit_ms=1000.0)))
    assert "| hops | commit ms | p50 s |" in text
    assert line_of(text, "**Brokerless**", "10,000", "2", "1000")
    assert "a commit each" not in text.split("## Spread")[0]
    assert "Smooth pacing, MinIO as the store, 60 s of which the first 30 do not count" in text


def test_a_session_says_where_it_comes_from() -> None:
    text = page(MANY)
    assert "A processor, 2 cores, 16.5 GB; 2026-11-21; commit abcdef012345." in text
    for part in ("### By rate", "python -m benchmarks --rates 10000", "pyspark 4.1.1", "as of 2026-11-01"):
        assert part in text
    assert "- The store is on the same machine.\n" in text


def test_published_figures_are_apart_from_those_that_were_measured() -> None:
    measured, elsewhere = page(MANY).split("### Published elsewhere, not measured here")
    assert "Pathway" not in measured
    assert "Other hardware" in elsewhere
    assert line_of(elsewhere, "Pathway (published, 100 ms)", "70,000")[2:] == ["100", "1.24", "35.7", "41.3"]


# The README


def test_the_readme_has_a_line_for_each_peer_and_a_column_for_each_rate() -> None:
    text = report.readme_fragment([MANY])
    assert text.splitlines()[0] == "| p50 / p99 in seconds, at messages/s: | 10,000 | 30,000 |"
    assert line_of(text, "**Brokerless**") == ["**Brokerless**", "0.26 / 0.78", "0.31 / 0.93"]
    assert line_of(text, "Kafka") == ["Kafka", "0.012 / 0.036", "1.70 / 5.10 \\*"]
    assert text.index("**Brokerless**") < text.index("| Kafka")  # though it is slower
    assert "\\* Not clean" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_readme_says_nothing_of_what_was_not_measured() -> None:
    assert report.readme_fragment([]) == "Nothing has been measured yet.\n"
    assert "Not clean" not in report.readme_fragment([session(result())])


def test_runs_of_two_sessions_are_no_repeats_of_each_other() -> None:
    old = session(result(p50=0.9, started="2026-11-20"), name="old")
    new = session(result(p50=0.3, started="2026-11-21"), name="new")
    assert "0.30 / 0.90" in report.readme_fragment([old, new])


def test_only_what_is_between_the_markers_changes(quick_plots: None) -> None:
    text = report.build([MANY], "", README)["README.md"].decode()
    assert text == f"# before\n\n{report.BEGIN}\n{report.readme_fragment([MANY])}{report.END}\n\nafter\n"


def test_a_readme_without_markers_is_left_alone(quick_plots: None) -> None:
    with pytest.raises(ValueError, match="measured:begin"):
        report.build([MANY], "", "# nothing")


# Plots


def test_each_plot_is_there_as_svg_and_png() -> None:
    images = plots.render(collapse(MANY.runs))
    names = ("cost", "distribution", "rate", "time")
    assert sorted(images) == [f"benchmark-{name}.{kind}" for name in names for kind in ("png", "svg")]
    for name, content in images.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml"), name
    assert re.search(rb"fill: ?#ffffff", images["benchmark-rate.svg"])  # for pages with a dark background


def test_a_plot_without_data_is_left_out() -> None:
    assert plots.render([]) == {}
    bare = dataclasses.replace(result(), cdf=[], windows=[], usd_per_million=None)
    assert plots.render(collapse([bare])) == {}
    one_rate = plots.render(collapse([result()]))
    assert sorted({name.partition(".")[0] for name in one_rate}) == [
        "benchmark-cost", "benchmark-distribution", "benchmark-time",
    ]  # fmt: skip
    text = report.page([session(result())], "", one_rate)
    assert "](img/benchmark-cost.svg)" in text
    assert "Latency by rate" not in text


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_plots_name_all_peers_and_the_published_figures_as_such() -> None:
    from benchmarks.peers.pathway import published

    figure = plots.by_rate([*collapse(MANY.runs), *collapse(published())])
    assert labels(figure) == [
        "Brokerless", "Kafka", "Pathway (published, 100 ms): other hardware, 1 hop, bursty",
    ]  # fmt: skip


def test_published_figures_alone_are_not_a_plot() -> None:
    from benchmarks.peers.pathway import published

    assert plots.render(collapse(published())) == {}


def test_hops_have_panels_of_their_own() -> None:
    figure = plots.distribution(collapse(MANY.runs))
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["1 hop, 10k messages/s", "2 hops, 10k messages/s"]
    drawn = figure.axes[1].lines[-1]
    assert list(drawn.get_xdata()) == pytest.approx([0.13, 0.26, 0.52, 0.78])  # the kit's middle repeat


def test_each_peer_has_a_colour_and_a_marker_of_its_own() -> None:
    measured = set(PEERS)
    assert measured <= set(plots.COLOURS)
    assert measured <= set(plots.MARKERS)
    for values in (plots.COLOURS, plots.MARKERS):
        assert len(set(values.values())) == len(values)


# The command


@pytest.fixture
def quick_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with the rows' figures instead of drawings of them, which take seconds."""

    def render(rows: Sequence[Row]) -> dict[str, bytes]:
        return {"benchmark-rate.svg": repr([(row.one.label, row.spread("p50_s")) for row in rows]).encode()}

    monkeypatch.setattr(plots, "render", render)


@pytest.fixture
def repository(tmp_path: Path, quick_plots: None) -> Path:
    MANY.save(tmp_path / "benchmarks" / "results")
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def snapshot(repository: Path) -> dict[str, bytes]:
    return {str(p.relative_to(repository)): p.read_bytes() for p in repository.rglob("*") if p.is_file()}


def test_the_same_results_give_the_same_bytes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the drawings themselves
    assert main(["benchmark"], repository) == 0
    files = snapshot(repository)
    assert len(files) == 1 + 2 + 8
    monkeypatch.setitem(mpl.rcParams, "xtick.labelsize", 19)  # what others configured has no say
    assert main(["benchmark", "--check"], repository) == 0
    assert snapshot(repository) == files


@pytest.mark.parametrize("name", ["README.md", "docs/benchmark.md", "docs/img/benchmark-rate.svg"])
def test_check_tells_what_is_not_up_to_date(repository: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["benchmark"], repository)
    path = repository / name
    path.write_text(path.read_text().replace("0", "1"))
    before = snapshot(repository)
    assert main(["benchmark", "--check"], repository) == 1
    assert capsys.readouterr().err == f"{name} is not up to date: run 'python -m tools.pages benchmark'.\n"
    assert snapshot(repository) == before


def test_check_fails_when_there_are_new_results(repository: Path) -> None:
    main(["benchmark"], repository)
    session(result(rate=70_000), name="more").save(repository / "benchmarks" / "results")
    assert main(["benchmark", "--check"], repository) == 1


def test_images_that_are_no_longer_made_are_removed(repository: Path) -> None:
    main(["benchmark"], repository)
    old = repository / "docs" / "img" / "benchmark-old.svg"
    old.write_text("<svg/>")
    assert main(["benchmark", "--check"], repository) == 1
    assert main(["benchmark"], repository) == 0
    assert not old.exists()


def test_notes_beside_the_results_are_used(repository: Path) -> None:
    (repository / "benchmarks" / "results" / "notes.md").write_text("- Sleeping less helped.\n")
    main(["benchmark"], repository)
    assert "- Sleeping less helped.\n" in (repository / "docs" / "benchmark.md").read_text()


def test_without_results_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text(README)
    assert main(["benchmark"], tmp_path) == 1
    assert "no results" in capsys.readouterr().err
    assert list(snapshot(tmp_path)) == ["README.md"]
