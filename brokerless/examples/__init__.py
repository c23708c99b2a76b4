"""Pipelines and generators to run and to copy."""
