"""Maintenance of tables: checkpoints, log clean-up and removal of orphaned objects."""
