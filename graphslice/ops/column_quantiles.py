"""Quantiles of every channel of a padded batch over its valid rows."""

from __future__ import annotations

import torch
from torch import Tensor

from graphslice.ops.column_sort import column_sort


def column_quantiles(x: Tensor, lengths: Tensor, q: Tensor) -> Tensor:
    """Compute quantiles of each channel over the valid rows, with linear interpolation as in :func:`torch.quantile`.

    Args:
        x: ``[B, N, C]``, floating point.
        lengths: int64 ``[B]``, number of valid rows of each sample, at least 1.
        q: ``[K, C]`` or ``[K, 1]``, floating point, quantile levels in [0, 1].

    Returns:
        ``[B, K, C]``, dtype of ``x``, differentiable in ``x`` and in ``q``.
    """
    sorted_x = column_sort(x, lengths)
    last = lengths[:, None, None] - 1
    # At least float32: half precision does not represent row numbers of several hundred exactly.
    position = q.to(torch.promote_types(x.dtype, torch.float32)) * last
    below = position.detach().floor().long()
    above = torch.minimum(below + 1, last)
    low, high = (sorted_x.gather(1, row.expand(-1, -1, x.shape[2])) for row in (below, above))
    return torch.lerp(low, high, (position - below).to(x.dtype))
