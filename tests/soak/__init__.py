"""The soak: everything runs for long, everything is struck again and again, and nothing may be lost or seen twice."""
