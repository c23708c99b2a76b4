"""The log of a table: the one primitive that everything rests on. Knows no roles."""
