"""The grid: real processes against a real S3 server, with every role struck by every fault at every step of its work.

``python -m tests.grid --list`` shows the cells; docs/testing.md says how to play them.
"""
