"""Deterministic simulation: the real producers, consumers, log, maintenance and sink decisions against a hostile world.

``python -m tests.sim --seeds 10000``; see docs/adr/0008-simulation.md.
"""
