"""Operators that the mixers stand on."""

from graphslice.ops.column_sort import column_sort
from graphslice.ops.dropout import Dropout, dropout
from graphslice.ops.max_exchange import max_exchange
from graphslice.ops.walk_softmax import walk_bias, walk_softmax

__all__ = ["Dropout", "column_sort", "dropout", "max_exchange", "walk_bias", "walk_softmax"]
