"""Quantiles of every channel of a padded batch over its valid rows."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.column_sort import column_sort


def column_quantiles(x: Tensor, lengths: Tensor, q: Tensor) -> Tensor:
    """Quantiles of each channel over the valid rows, linear between two of them as :func:`torch.quantile`'s are.

    Args:
        x: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, the number of valid rows of each sample, at least 1.
        q: ``[K, C]`` or ``[K, 1]``, floating point, from 0 (the smallest value) to 1 (the largest).

    Returns:
        ``[B, K, C]``, the dtype of ``x``, differentiable in ``x`` and in ``q``.
    """
    ordered = column_sort(x, lengths)
    last = lengths[:, None, None] - 1
    # Not in half precision: it cannot count hundreds of rows.
    position = q.to(torch.promote_types(x.dtype, torch.float32)) * last
    below = position.detach().floor().long()
    above = torch.minimum(below + 1, last)
    low, high = (ordered.gather(1, row.expand(-1, -1, x.shape[2])) for row in (below, above))
    return torch.lerp(low, high, (position - below).to(x.dtype))
