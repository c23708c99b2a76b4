"""Maintenance: checkpoints, log clean-up and orphans, on a schedule."""
