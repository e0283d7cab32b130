"""Sort every channel of a padded batch over its valid rows."""

from __future__ import annotations

import torch
from torch import Tensor


def column_sort(x: Tensor, lengths: Tensor | None = None, order: str | Tensor = "ascending") -> Tensor:
    """``Sort_col``: each channel of each sample sorted over the sample's rows.

    The implicit map of every channel is a permutation matrix, so the gradient is the inverse
    permutation (Yuan and Xu, Sliceformer, equation 4). Ties keep their order; nan counts as the
    largest value, as in :func:`torch.sort`.

    Args:
        x: ``[B, N, C]``, floating point.
        lengths: integer ``[B]``, the number of valid rows of each sample, or None for all N. The
            rows after them stay as they are and take no part.
        order: ``"ascending"``, ``"descending"``, or a boolean ``[C]``: True sorts a channel
            descending.

    Returns:
        ``[B, N, C]``, the dtype of ``x``.
    """
    if isinstance(order, str) and order not in ("ascending", "descending"):
        raise ValueError(f"order is 'ascending', 'descending' or a boolean tensor, not {order!r}")
    valid = None
    if lengths is not None:
        valid = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]
    if isinstance(order, str):
        result = _sort(x, valid, order == "descending")
    else:
        result = torch.where(order, _sort(x, valid, True), _sort(x, valid, False))
    return result if valid is None else torch.where(valid, result, x)


def _sort(x: Tensor, valid: Tensor | None, descending: bool) -> Tensor:
    key = x.detach()
    if valid is not None:
        # The last value of either order; a stable sort puts the padding behind its equals.
        key = key.masked_fill(~valid, -torch.inf if descending else torch.nan)
    order = torch.sort(key, dim=1, descending=descending, stable=True).indices
    return x.gather(1, order)
