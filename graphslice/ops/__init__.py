"""Operators that the mixers stand on."""

from graphslice.ops.column_sort import column_sort
from graphslice.ops.dropout import Dropout, dropout

__all__ = ["Dropout", "column_sort", "dropout"]
