"""Documents that are made from the code."""
