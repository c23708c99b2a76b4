"""Arrow tables in the pipeline: separating dead letters, and ages as a histogram; no Python code per row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from brokerless.metrics import LATENCY_BOUNDS_S, Histogram
from brokerless.schema import PRODUCED_AT
from brokerless.spark.messages import DEAD_LETTER


def split_dead_letters(table: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """Return the good rows without the mark, and the dead letters with their topic's columns (None without any)."""
    if DEAD_LETTER not in table.column_names:
        return table, None
    marks = table.column(DEAD_LETTER)
    rows = table.drop_columns([DEAD_LETTER])
    if marks.null_count == len(marks):
        return rows, None
    bad = pc.is_valid(marks)
    rejected = pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in marks.filter(bad).chunks if len(chunk)]
    )
    if PRODUCED_AT in rows.column_names:
        rejected = rejected.append_column(PRODUCED_AT, rows.column(PRODUCED_AT).filter(bad))
    return rows.filter(pc.invert(bad)), rejected


def ages(table: pa.Table, now_us: int) -> Histogram:
    """Return a histogram of the rows' ages by ``_produced_at``; empty without that column."""
    histogram = Histogram()
    if PRODUCED_AT not in table.column_names or not table.num_rows:
        return histogram
    import numpy as np

    produced = pc.cast(table.column(PRODUCED_AT), pa.timestamp("us", tz="UTC")).cast(pa.int64()).drop_null().to_numpy()
    seconds = (now_us - produced) / 1e6
    counts = np.bincount(np.searchsorted(LATENCY_BOUNDS_S, seconds), minlength=len(LATENCY_BOUNDS_S) + 1)
    histogram.add_counts(counts.tolist())
    return histogram
