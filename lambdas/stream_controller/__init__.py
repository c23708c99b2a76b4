"""Keeps streaming jobs running as they were deployed."""
