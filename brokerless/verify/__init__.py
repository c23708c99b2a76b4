"""Verification of Delta tables: their logs, checkpoints and objects (``table``)."""
