"""Arrow tables as those of other libraries, which are optional and imported on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from brokerless.errors import ConfigError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from arro3.core.types import ArrowStreamExportable


def optional(package: str, extra: str) -> Any:
    """Import a package that is not always installed.

    Raises:
        ConfigError: it is not; the text names the extra that installs it.
    """
    try:
        return import_module(package)
    except ImportError:
        raise ConfigError(f"This needs {package}: pip install 'brokerless[{extra}]'.") from None


def to_arrow(table: ArrowStreamExportable) -> pyarrow.Table:
    """Return the table as one of pyarrow, without a copy."""
    return optional("pyarrow", "arrow").table(table)


def to_polars(table: ArrowStreamExportable) -> polars.DataFrame:
    """Return the table as a data frame of polars."""
    frame: polars.DataFrame = optional("polars", "polars").DataFrame(table)
    return frame


def to_pandas(table: ArrowStreamExportable) -> pandas.DataFrame:
    """Return the table as a data frame of pandas."""
    optional("pandas", "pandas")
    frame: pandas.DataFrame = optional("pyarrow", "pandas").table(table).to_pandas()
    return frame
