"""Rows and Arrow columns, and the Parquet objects that hold them."""
