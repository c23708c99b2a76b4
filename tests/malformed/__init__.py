"""Malformed inputs by the thousand: each must end in a clear error or a dead letter, and take no neighbour with it."""
