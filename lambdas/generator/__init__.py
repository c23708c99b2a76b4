"""The generator: the example's messages at a steady rate."""
