"""The time-zone example: its messages, its generator and the demo."""
