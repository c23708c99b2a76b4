"""The cost model: prices, workload, bills, and the alternatives."""
