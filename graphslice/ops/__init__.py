"""Operators that the mixers stand on."""

from graphslice.ops.column_sort import column_sort
from graphslice.ops.dropout import Dropout, dropout
from graphslice.ops.max_exchange import max_exchange

__all__ = ["Dropout", "column_sort", "dropout", "max_exchange"]
