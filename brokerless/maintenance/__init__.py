"""Keeping tables in order: checkpoints, log clean-up and removal of orphaned objects."""
