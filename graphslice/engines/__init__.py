"""Engines for distributed computing: each maps a function over a table."""
