"""What a stream costs: prices, workload, bills, and the alternatives."""
