"""The documents that are generated: each module makes one page."""
