"""Rank collapse: what is proved of mixers that are stacked without skips, norms and feed-forward networks.

Both bounds are of the residual of :func:`graphslice.analysis.rows_residual` and hold without a graph. They leave
float64 within a few layers, so they are given as logarithms to base 10.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.analysis.spectra import one_inf_norm
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer, SoftmaxAttention


def mixer_stack_outputs(mixers: Sequence[Mixer], x: Tensor, context: AttentionContext | None = None) -> np.ndarray:
    """``float64 [L + 1, N, C]``: rows ``[N, C]`` and what each mixer makes of those before it, computed in float64.

    Args:
        mixers: of L layers, with their output projections.
        x: the rows that enter the first.
        context: of the sample; by default one without a graph.
    """
    context = context or AttentionContext(torch.tensor([len(x)], device=x.device), len(x))
    rows = [x.double()[None]]
    with torch.inference_mode():
        for mixer in mixers:
            rows.append(copy.deepcopy(mixer).double().eval()(rows[-1], context))
    return torch.cat(rows).cpu().numpy()


def permutation_bound(mixers: Sequence[Mixer], *, by_layer: bool = False) -> np.ndarray:
    """``float64 [L + 1]``: log10 of what the residual of 0 to L layers is at most, as a multiple of the input's.

    ``C^(L/2) (lambda beta)^L`` (CSP, Theorem 1, eq. 7): beta is the largest of ``|W|_1``, W the value maps, and
    lambda the largest Lipschitz constant of what follows a mixer. Here that is the output projection O, whose constant
    in the (1, inf)-norm is ``sqrt(|O|_1 |O|_inf)``. The proof asks of a mixer that the residual of no channel grows, so
    it holds for every sort, for max-exchange, and for channels that are kept or pooled.

    Args:
        mixers: of L layers; each has a ``value`` map and permutes, keeps or pools its channels.
        by_layer: multiply the constants of the layers instead of taking the largest for all (eq. 17, second line).
    """
    values = _log10([_one_norm(_matrix(mixer.get_submodule("value"), mixer.dim)) for mixer in mixers])
    follow = _log10([one_inf_norm(_matrix(mixer.output, mixer.dim)) for mixer in mixers])
    layers = np.arange(1, len(mixers) + 1)
    if by_layer:
        total = np.cumsum(values + follow)
    else:
        total = layers * (np.maximum.accumulate(values) + np.maximum.accumulate(follow))
    return np.concatenate([[0.0], total + layers / 2 * np.log10(mixers[0].dim)])


def attention_bound(mixers: Sequence[SoftmaxAttention], residual: float) -> np.ndarray:
    """``float64 [L + 1]``: log10 of what the residual of 0 to L layers of attention is at most.

    ``(4 beta H / sqrt(d))^((3^L - 1) / 2) |res(X)|^(3^L)`` (Dong et al. 2021, for H heads of d channels): beta is the
    largest ``|W_QK|_1 |W_VO|_(1, inf)`` of a head, W_QK its query times its key map and W_VO its value times its part
    of the output projection. Less than the input's residual only where that is below
    ``(4 beta H / sqrt(d))^(-1/2)``.

    Args:
        mixers: of L layers.
        residual: of the rows that enter the first.
    """
    gains = np.concatenate([[0.0], np.maximum.accumulate(attention_gains(mixers))])
    cubed = 3.0 ** np.arange(len(gains))
    return gains * (cubed - 1) / 2 + cubed * _log10(residual)


def attention_gains(mixers: Sequence[SoftmaxAttention]) -> np.ndarray:
    """``float64 [L]``: log10 of ``4 beta H / sqrt(d)`` of each layer: see :func:`attention_bound`."""
    found = []
    for mixer in mixers:
        width = mixer.dim // mixer.heads
        query, key, value, output = (
            _matrix(linear, mixer.dim) for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        parts = [slice(head * width, (head + 1) * width) for head in range(mixer.heads)]
        beta = max(_one_norm(query[:, h] @ key[:, h].T) * one_inf_norm(value[:, h] @ output[h]) for h in parts)
        found.append(4 * beta * mixer.heads / np.sqrt(width))
    return _log10(found)


def _matrix(linear: nn.Module, dim: int) -> np.ndarray:
    """``float64 [C, C]``: W of ``x W + b``, asked of the module, whatever it is made of."""
    eye = torch.eye(dim, dtype=torch.float64)
    with torch.inference_mode():
        affine = copy.deepcopy(linear).cpu().double()
        return (affine(eye) - affine(torch.zeros_like(eye))).numpy()


def _one_norm(x: np.ndarray) -> float:
    return float(np.abs(x).sum(0).max())


def _log10(x: float | list[float]) -> np.ndarray:
    """-inf of zeros, which maps may be."""
    with np.errstate(divide="ignore"):
        return np.log10(x)
