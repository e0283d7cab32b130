"""Comparison of mixers on the same data, with the same training budget and seeds."""

from graphslice.compare.plan import parse_variants
from graphslice.compare.report import table
from graphslice.compare.runner import compare

__all__ = ["compare", "parse_variants", "table"]
