"""Operators that the mixers stand on."""

from graphslice.ops.add_norm import add_norm
from graphslice.ops.attention import attention
from graphslice.ops.column_quantiles import column_quantiles
from graphslice.ops.column_sort import column_sort
from graphslice.ops.dropout import Dropout, dropout
from graphslice.ops.gelu import bias_gelu
from graphslice.ops.linear_attention import linear_attention
from graphslice.ops.map_sort import map_sort
from graphslice.ops.map_values import map_values
from graphslice.ops.max_exchange import max_exchange
from graphslice.ops.tell_maximum import tell_maximum
from graphslice.ops.walk_softmax import walk_bias, walk_softmax

__all__ = [
    "Dropout",
    "add_norm",
    "attention",
    "bias_gelu",
    "column_quantiles",
    "column_sort",
    "dropout",
    "linear_attention",
    "map_sort",
    "map_values",
    "max_exchange",
    "tell_maximum",
    "walk_bias",
    "walk_softmax",
]


# SHIM
aggregate, aggregate_sort, broadcast_max, path_softmax, path_bias = (
    map_values,
    map_sort,
    tell_maximum,
    walk_softmax,
    walk_bias,
)
_add_norm, _column_quantiles = add_norm, column_quantiles


def gelu(x):
    return bias_gelu(x, x.new_zeros(x.shape[-1]))


def add_norm(x, y, weight, bias, p=0.0, eps=1e-5):
    return _add_norm(x, y, x.new_zeros(x.shape[-1]), weight, bias, p, eps)
