"""Load the pipeline that a Python file defines."""

from __future__ import annotations

import re
import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING

from brokerless.errors import BrokerlessError, ConfigError
from brokerless.spark.pipeline import Pipeline

if TYPE_CHECKING:
    from types import ModuleType


def load_pipeline(path: Path) -> Pipeline:
    """Execute a file and return the one ``Pipeline`` that it defines at module level.

    The file is not executed as ``__main__``, so what stands below ``if __name__ == "__main__":`` does not run. Its
    functions travel to Spark's workers by value: the workers need not find the file.

    Raises:
        ConfigError: it cannot be read, fails, or defines no pipeline or several.
    """
    module = _execute(path)
    found = {id(value): name for name, value in vars(module).items() if isinstance(value, Pipeline)}
    if len(found) == 1:
        pipeline: Pipeline = vars(module)[next(iter(found.values()))]
        return pipeline
    if found:
        raise ConfigError(
            f"{path} defines {len(found)} pipelines ({', '.join(found.values())}), but a file must define one. "
            "Give each a file of its own; they can import a common module."
        )
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    raise ConfigError(
        f"{path} defines no pipeline at module level; it defines {', '.join(own) or 'nothing'}. Add: "
        'pipeline = Pipeline("NAME", inputs=["TOPIC"], output="TOPIC", transform=FUNCTION), from brokerless.'
    )


def _execute(path: Path) -> ModuleType:
    # A name that no other module has: a file may be called like a package that it imports.
    name = "_pipeline_" + re.sub(r"\W", "_", path.stem)
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    if spec is None or not path.is_file():
        raise ConfigError(f"There is no file {str(path)!r} in {Path.cwd()}.")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    _pickle_by_value(module)
    try:
        loader.exec_module(module)
    except BrokerlessError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded{_line_of(error, path)}: {type(error).__name__}: {error}") from error
    return module


def _pickle_by_value(module: ModuleType) -> None:
    try:
        from pyspark.cloudpickle import register_pickle_by_value
    except ImportError as error:
        raise ConfigError(
            f"Pipelines need pyspark, which is not installed for {sys.executable}: pip install 'brokerless[spark]'."
        ) from error
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _line_of(error: Exception, path: Path) -> str:
    """Return where in the file it was, as `` (line 3)``; empty if not known."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
