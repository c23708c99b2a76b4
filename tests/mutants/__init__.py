"""Each safeguard is taken out of a copy of the package, and an attack must notice: ``python -m tests.mutants``."""
