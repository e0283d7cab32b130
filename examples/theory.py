"""Similarity of the rows of a matrix: rank-1 residual, and bounds on the rank collapse of mixers.

The bounds hold for stacked mixers without skip connections, normalisation and feed-forward networks. Both are on the
residual of :func:`rows_residual`, for inputs without a graph. They leave
the range of float64 within a few layers, so they are returned as base-10 logarithms.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer
from graphslice.nn.mixers.attention import SoftmaxAttention


def one_inf_norm(x: np.ndarray) -> float:
    """Compute ``sqrt(|x|_1 |x|_inf)``, the geometric mean of the largest absolute column sum and row sum."""
    size = np.abs(np.asarray(x, np.float64))
    return float(np.sqrt(size.sum(0).max(initial=0) * size.sum(1).max(initial=0)))


def rows_residual(x: np.ndarray) -> float:
    """Compute the residual ``|x - 1 y^T|`` of ``x`` ``[N, C]`` in the (1, inf)-norm, with y the column-wise median.

    It is 0 if all rows are equal. Dong et al. 2021 and CSP, eq. 6, define the residual with the y that minimises the
    norm. The median minimises it in the 1-norm, and is within a factor of 2 of the minimum in the inf-norm, so the
    result is at most sqrt(2) times the minimal residual.
    """
    x = np.asarray(x, np.float64)
    return one_inf_norm(x - np.median(x, axis=0)) if len(x) else 0.0


def rank_one_residual(x: np.ndarray) -> float:
    """Compute :func:`rows_residual` of ``x`` ``[N, C]`` over the norm of ``x``: 0 if equal, near 1 if unrelated."""
    norm = one_inf_norm(x)
    return rows_residual(x) / norm if norm else 0.0


def mixer_stack_outputs(mixers: Sequence[Mixer], x: Tensor, context: AttentionContext | None = None) -> np.ndarray:
    """Compute the outputs of stacked mixers in float64.

    Args:
        mixers: L layers, with their output projections.
        x: input rows ``[N, C]`` of the first layer.
        context: context of the sample; by default one without a graph.

    Returns:
        ``float64 [L + 1, N, C]``: the input, and the output of each layer.
    """
    context = context or AttentionContext(torch.tensor([len(x)], device=x.device), len(x))
    rows = [x.double()[None]]
    with torch.inference_mode():
        for mixer in mixers:
            rows.append(copy.deepcopy(mixer).double().eval()(rows[-1], context))
    return torch.cat(rows).cpu().numpy()


def permutation_bound(mixers: Sequence[Mixer], *, by_layer: bool = False) -> np.ndarray:
    """Compute the upper bound on the residual after permuting mixers, relative to the input's residual.

    The bound is ``C^(L/2) (lambda beta)^L`` (CSP, Theorem 1, eq. 7): beta is the largest ``|W|_1`` of the value maps W,
    and lambda the largest Lipschitz constant of the map after the mixer. Here that is the output projection O, whose
    constant in the (1, inf)-norm is ``sqrt(|O|_1 |O|_inf)``. The proof requires of a mixer that the residual of no
    channel grows, so it holds for every sort, for max-exchange, and for channels that are kept or pooled.

    Args:
        mixers: L layers; each has a ``value`` map and permutes, keeps or pools its channels.
        by_layer: multiply the constants of the individual layers instead of using the largest for all (eq. 17, second
            line).

    Returns:
        ``float64 [L + 1]``: log10 of the bound after 0 to L layers.
    """
    values = _log10([np.linalg.norm(_matrix(mixer.get_submodule("value"), mixer.dim), 1) for mixer in mixers])
    follow = _log10([one_inf_norm(_matrix(mixer.output, mixer.dim)) for mixer in mixers])
    layers = np.arange(1, len(mixers) + 1)
    if by_layer:
        total = np.cumsum(values + follow)
    else:
        total = layers * (np.maximum.accumulate(values) + np.maximum.accumulate(follow))
    return np.concatenate([[0.0], total + layers / 2 * np.log10(mixers[0].dim)])


def attention_bound(mixers: Sequence[SoftmaxAttention], residual: float) -> np.ndarray:
    """Compute the upper bound on the residual after softmax attention.

    The bound is ``(4 beta H / sqrt(d))^((3^L - 1) / 2) |res(X)|^(3^L)`` (Dong et al. 2021, for H heads of d channels):
    beta is the largest ``|W_QK|_1 |W_VO|_(1, inf)`` of a head, W_QK its query times its key map and W_VO its value
    times its part of the output projection. It is below the input's residual only if that is below
    ``(4 beta H / sqrt(d))^(-1/2)``.

    Args:
        mixers: L layers.
        residual: residual of the input rows of the first layer.

    Returns:
        ``float64 [L + 1]``: log10 of the bound after 0 to L layers.
    """
    gains = np.concatenate([[0.0], np.maximum.accumulate(attention_gains(mixers))])
    cubed = 3.0 ** np.arange(len(gains))
    return gains * (cubed - 1) / 2 + cubed * _log10(residual)


def attention_gains(mixers: Sequence[SoftmaxAttention]) -> np.ndarray:
    """Compute log10 of ``4 beta H / sqrt(d)`` of each layer, ``float64 [L]``: see :func:`attention_bound`."""
    gains = []
    for mixer in mixers:
        width = mixer.dim // mixer.heads
        query, key, value, output = (
            _matrix(linear, mixer.dim) for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        parts = [slice(head * width, (head + 1) * width) for head in range(mixer.heads)]
        beta = max(np.linalg.norm(query[:, h] @ key[:, h].T, 1) * one_inf_norm(value[:, h] @ output[h]) for h in parts)
        gains.append(4 * beta * mixer.heads / np.sqrt(width))
    return _log10(gains)


def _matrix(linear: nn.Module, dim: int) -> np.ndarray:
    """Compute W of the affine map ``x W + b``, ``float64 [C, C]``, by applying the module to the identity matrix."""
    eye = torch.eye(dim, dtype=torch.float64)
    with torch.inference_mode():
        affine = copy.deepcopy(linear).cpu().double()
        return (affine(eye) - affine(torch.zeros_like(eye))).numpy()


def _log10(x: float | list[np.floating] | list[float]) -> np.ndarray:
    """Compute log10; -inf for 0, which occurs for zero maps."""
    with np.errstate(divide="ignore"):
        return np.log10(x)
