"""Loading the pipeline of a user's file, and what is said of a file that has none."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from brokerless.errors import ConfigError
from brokerless.local.jobs import job_script
from brokerless.spark.__main__ import main
from brokerless.spark.files import load_pipeline

pytestmark = pytest.mark.spark

HEAD = "from brokerless import Pipeline\n\ndef same(rows):\n    return rows\n\n"
ONE = 'pipeline = Pipeline("one", inputs=["a"], output="out", transform=same)\n'


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_pipeline_of_a_file_is_found_by_what_it_is(tmp_path: Path) -> None:
    main_block = 'again = pipeline\nif __name__ == "__main__":\n    raise AssertionError("it was run")\n'
    pipeline = load_pipeline(written(tmp_path, HEAD + ONE + main_block))
    assert (pipeline.name, pipeline.inputs, pipeline.output) == ("one", ("a",), "out")


def test_a_file_may_be_called_like_a_package_that_it_imports(tmp_path: Path) -> None:
    before = sys.modules["brokerless"]
    assert load_pipeline(written(tmp_path, HEAD + ONE, "brokerless.py")).name == "one"
    assert sys.modules["brokerless"] is before


def test_functions_of_the_file_travel_by_value(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    pipeline = load_pipeline(written(tmp_path, HEAD + ONE))
    data = cloudpickle.dumps(pipeline.transform)
    del sys.modules[pipeline.transform.__module__]  # as in a worker, which never saw the file
    assert pickle.loads(data)(3) == 3  # noqa: S301  # our own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "defines no pipeline at module level; it defines nothing"),
        (HEAD, r"it defines same\. Add: pipeline = Pipeline\("),
        (HEAD + ONE + ONE.replace("pipeline =", "other ="), r"defines 2 pipelines \(pipeline, other\)"),
        ("x = 1\ny = =\n", r"cannot be loaded \(line 2\): SyntaxError"),
        ("x = 1\n\nimport no_such_module\n", r"\(line 3\): ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"\(line 2\): ZeroDivisionError"),
        (HEAD + ONE.replace('["a"]', '"a"'), "inputs must be a list of at least one topic, got 'a'"),
    ],
    ids=["empty", "no pipeline", "two", "syntax", "import", "failure", "mistake"],
)
def test_what_is_said_of_a_file_without_one_pipeline(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_pipeline(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"There is no file 'mine\.py'"):
        load_pipeline(Path("mine.py"))
    for name in ("mine.py", "mine", ".", "__init__", "../timezone-etl"):
        with pytest.raises(ConfigError, match=f"no file '{name}' in .*examples are: timezone-etl.*brokerless new"):
            job_script(name)


def test_a_name_is_an_example_and_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_pipeline(job_script("timezone-etl")).name == "timezone-etl"
    assert job_script(str(written(tmp_path, HEAD + ONE))) == tmp_path / "mine.py"
    assert job_script("mine.py") == tmp_path / "mine.py"


def test_the_module_runs_what_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    assert main([]) == 2
    assert main([str(written(tmp_path, "x = 1\n"))]) == 2
    beside = written(tmp_path, HEAD, "beside.py")
    assert main([str(written(tmp_path, "from beside import same\n" + HEAD + ONE)), "--root", f"file://{tmp_path}"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Usage: python -m brokerless.spark FILE")
    assert said[1].startswith("ConfigError: ")
    assert said[2].startswith("TopicNotFound: There is no topic 'a'")
    assert "brokerless topics create a --schema" in said[2]
    sys.modules.pop(beside.stem, None)
