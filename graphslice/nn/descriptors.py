"""Descriptors of a molecule on their way to the head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.ops import Dropout, gelu

# Of inputs and outputs both. 2,251 inputs tell a thousand molecules apart: with less, weights learn single ones.
_DROPOUT = 0.5
# The deviation of the first weights, before the division by sqrt(F): the graph has the first word.
_START = 0.3
# The share of the training values at each end that does not say how far values may go, and how many times the span of
# the others they may go beyond these.
_TAIL, _BEYOND = 0.005, 1.0
# How many deviations from the mean a value counts at most.
_MAX_STDS = 5.0
# Columns that are sorted at a time.
_BLOCK = 128


class DescriptorEncoder(nn.Module):
    """``Dropout(GELU(W Dropout(z) / sqrt(F) + b))`` of standardised descriptors z, ``[B, F]`` to ``[B, C]``.

    A descriptor is cut to ``[low, high]``, then z is ``(x - centre) / scale``; 0, the mean, where it is unknown. These
    are buffers, float32 ``[F]``, which :meth:`fit` takes from training molecules. The division keeps a step of the
    optimiser, which moves every weight as far, from moving the output by sqrt(F).
    """

    centre: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, descriptors: int, dim: int) -> None:
        super().__init__()
        largest = torch.finfo(torch.float32).max
        for name, value in (("centre", 0.0), ("scale", 1.0), ("low", -largest), ("high", largest)):
            self.register_buffer(name, torch.full((descriptors,), value))
        self.input_dropout = Dropout(_DROPOUT)
        self.project = nn.Linear(descriptors, dim)
        self.dropout = Dropout(_DROPOUT)

    def reset_parameters(self) -> None:
        """Normal initialisation."""
        nn.init.normal_(self.project.weight, std=_START)
        nn.init.zeros_(self.project.bias)

    def fit(self, values: Tensor) -> None:
        """Set the buffers by the descriptors of some molecules: see :func:`fit_standardisation`.

        Args:
            values: ``float32 [R, F]``, nan where unknown.
        """
        for name, found in zip(("centre", "scale", "low", "high"), fit_standardisation(values), strict=True):
            getattr(self, name).copy_(found)

    def standardised(self, descriptors: Tensor) -> Tensor:
        """z, float32 ``[B, F]``."""
        return ((descriptors.clamp(self.low, self.high) - self.centre) / self.scale).nan_to_num(nan=0.0)

    def forward(self, descriptors: Tensor) -> Tensor:
        z = self.standardised(descriptors).to(self.project.weight.dtype) * descriptors.shape[1] ** -0.5
        return self.dropout(gelu(self.project(self.input_dropout(z))))


def fit_standardisation(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """How descriptors of some molecules are standardised.

    The values between the 0.5% and the 99.5% quantile say how far any may go: as far again beyond them, within those
    that were seen, and 5 deviations from the mean. Where these quantiles are the same, as of a rare environment, all
    that was seen counts. Mean and deviation are those of what is cut so.

    Args:
        values: ``float32 [R, F]``, nan where unknown; what is infinite counts as unknown.

    Returns:
        ``centre``, ``scale``, ``low`` and ``high``, ``float32 [F]``. Of a descriptor that has one value, or none, the
        last two are the first, so that it is always 0; its scale is 1.
    """
    parts = [_fit_standardisation_block(part) for part in values.split(_BLOCK, dim=1)]
    centre, scale, low, high = (torch.cat(found) for found in zip(*parts, strict=True))
    return centre, scale, low, high


def _fit_standardisation_block(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = values.double()
    x = torch.where(x.isfinite(), x, torch.nan).sort(dim=0).values  # nan comes last
    count = (~x.isnan()).sum(dim=0)
    smallest, q_low, q_high, largest = (_quantile(x, count, q) for q in (0.0, _TAIL, 1 - _TAIL, 1.0))
    span = q_high - q_low
    low = torch.where(span > 0, torch.maximum(smallest, q_low - _BEYOND * span), smallest)
    high = torch.where(span > 0, torch.minimum(largest, q_high + _BEYOND * span), largest)
    cut = x.clamp(low, high)
    mean = cut.nansum(dim=0) / count.clamp_min(1)
    std = ((cut - mean).square().nansum(dim=0) / count.clamp_min(1)).sqrt()
    low = torch.maximum(low, mean - _MAX_STDS * std)
    high = torch.minimum(high, mean + _MAX_STDS * std)
    centre, scale, low, high = (found.float() for found in (mean, std, low, high))
    constant = ~(low < high) | (scale == 0)
    one = torch.where(low.isnan(), 0, low)
    centre, low, high = (torch.where(constant, one, found) for found in (centre, low, high))
    return centre, torch.where(constant, 1, scale), low, high


def _quantile(x: Tensor, count: Tensor, q: float) -> Tensor:
    """The quantile of the first ``count`` of the sorted values of each column, between two of them linearly."""
    if len(x) == 0:
        return x.new_full(count.shape, torch.nan)
    place = q * (count - 1).clamp_min(0).double()
    below = place.floor().long()
    above = torch.minimum(below + 1, (count - 1).clamp_min(0))
    first, second = x.gather(0, below[None])[0], x.gather(0, above[None])[0]
    return first + (second - first) * (place - below)
