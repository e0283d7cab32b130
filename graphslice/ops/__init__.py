"""Operators that the mixers stand on."""

from graphslice.ops.column_sort import column_sort

__all__ = ["column_sort"]
