"""Mixers side by side: the same data, the same budget and the same seeds for each."""

from graphslice.compare.plan import parse_variants
from graphslice.compare.report import table
from graphslice.compare.runner import compare

__all__ = ["compare", "parse_variants", "table"]
