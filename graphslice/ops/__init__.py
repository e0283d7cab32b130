"""Operators on padded batches that the mixers are built from, with compiled backends.

:mod:`graphslice.ops.dispatch` selects the backend of a call; every operator has a plain torch reference. Unless its
docstring says more, a numba backend supports float32 with C a multiple of 16.
"""

from graphslice.ops.aggregate import aggregate as aggregate
from graphslice.ops.attention import attention as attention
from graphslice.ops.bond_messages import bond_messages as bond_messages
from graphslice.ops.broadcast_max import broadcast_max as broadcast_max
from graphslice.ops.column_quantiles import column_quantiles as column_quantiles
from graphslice.ops.column_sort import column_sort as column_sort
from graphslice.ops.dispatch import OPERATORS as OPERATORS
from graphslice.ops.dropout import Dropout as Dropout
from graphslice.ops.dropout import dropout as dropout
from graphslice.ops.embed_atoms import embed_atoms as embed_atoms
from graphslice.ops.linear_attention import head_norm as head_norm
from graphslice.ops.linear_attention import linear_attention as linear_attention
from graphslice.ops.max_exchange import max_exchange as max_exchange
from graphslice.ops.path_softmax import path_bias as path_bias
from graphslice.ops.path_softmax import path_softmax as path_softmax
from graphslice.ops.path_values import path_values as path_values
from graphslice.ops.read_out import read_out as read_out
from graphslice.ops.sort_by_first import sort_by_first as sort_by_first
