"""Generators of documents, one module per page."""
