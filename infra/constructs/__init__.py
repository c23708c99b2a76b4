"""The parts that the stacks are composed of."""
