"""A topic as a file: CSV, JSON lines or Parquet."""
