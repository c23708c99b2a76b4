"""Benchmarks: performance of brokerless on this machine, with checks for loss, duplicates and order."""
