"""The function that keeps a stage's streaming jobs running."""
