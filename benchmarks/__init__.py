"""Measurements: what the kit does on this machine, with loss, duplicates and order checked."""
