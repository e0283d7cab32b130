"""Encoder of molecular descriptors, whose output is concatenated to the readouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.ops import Dropout

# Dropout rate of inputs and outputs. With less, the weights of 2,251 inputs memorise single molecules of a thousand.
_DROPOUT = 0.5
# Standard deviation of the initial weights, before the division by sqrt(F): small, so the graph dominates at first.
_INIT_STD = 0.3
# Fraction of the training values in each tail, beyond the quantiles that set the range, and the margin on each side of
# these quantiles in multiples of their distance.
_TAIL, _MARGIN = 0.005, 1.0
# Maximum distance of a value from the mean, in standard deviations.
_MAX_STDS = 5.0
# Number of columns whose quantiles are computed at a time, which limits the memory.
_BLOCK = 128


class DescriptorEncoder(nn.Module):
    """Encoder of standardised descriptors z, ``Dropout(GELU(W Dropout(z) / sqrt(F) + b))``.

    Descriptors x are clipped to ``[low, high]`` and standardised, ``z = (x - centre) / scale``, with the buffers,
    float32 ``[F]``, of :meth:`fit`; unknown values (nan) are replaced by the mean, z = 0. An optimiser such as AdamW
    moves every weight equally far; the division keeps the change of the output in a step from growing with sqrt(F).
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
        """Draw the weights from a normal distribution; the bias is 0."""
        nn.init.normal_(self.project.weight, std=_INIT_STD)
        nn.init.zeros_(self.project.bias)

    def fit(self, values: Tensor) -> None:
        """Fit the standardisation to the training set ``values [R, F]`` with :func:`fit_standardisation`."""
        for name, value in zip(("centre", "scale", "low", "high"), fit_standardisation(values), strict=True):
            getattr(self, name).copy_(value)

    def standardised(self, descriptors: Tensor) -> Tensor:
        """Clip and standardise descriptors ``[B, F]``: float32 ``[B, F]``, 0 where unknown."""
        return ((descriptors.clamp(self.low, self.high) - self.centre) / self.scale).nan_to_num(nan=0.0)

    def forward(self, descriptors: Tensor) -> Tensor:
        """Encode descriptors, float32 ``[B, F]``, nan where unknown: ``[B, C]``."""
        z = self.standardised(descriptors).to(self.project.weight.dtype) * descriptors.shape[1] ** -0.5
        return self.dropout(F.gelu(self.project(self.input_dropout(z))))


def fit_standardisation(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fit a robust standardisation of descriptors, float32 ``[R, F]``; nan and infinite values are unknown.

    With q the 0.5% and 99.5% quantiles of a descriptor and d their distance, the clipping range is
    ``[q_low - d, q_high + d]``, within minimum and maximum of the values and within 5 standard deviations of the
    mean. If the two quantiles are equal, as for the count of a rare atom environment, only the latter two bounds
    apply. Mean and standard deviation are computed after clipping to the quantile-based range. Returns ``centre``
    (the mean), ``scale`` (the standard deviation), ``low`` and ``high``, float32 ``[F]``. A descriptor that is
    constant or unknown has ``low = high = centre`` and ``scale`` 1, so its standardised value is always 0.
    """
    parts = [_fit_standardisation_block(part) for part in values.split(_BLOCK, dim=1)]
    centre, scale, low, high = (torch.cat(column_blocks) for column_blocks in zip(*parts, strict=True))
    return centre, scale, low, high


def _fit_standardisation_block(values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = values.double()
    x = torch.where(x.isfinite(), x, torch.nan)
    count = (~x.isnan()).sum(dim=0)
    smallest, q_low, q_high, largest = x.nanquantile(x.new_tensor([0.0, _TAIL, 1 - _TAIL, 1.0]), dim=0)
    span = q_high - q_low
    low = torch.where(span > 0, torch.maximum(smallest, q_low - _MARGIN * span), smallest)
    high = torch.where(span > 0, torch.minimum(largest, q_high + _MARGIN * span), largest)
    clipped = x.clamp(low, high)
    mean = clipped.nansum(dim=0) / count.clamp_min(1)
    std = ((clipped - mean).square().nansum(dim=0) / count.clamp_min(1)).sqrt()
    low = torch.maximum(low, mean - _MAX_STDS * std)
    high = torch.minimum(high, mean + _MAX_STDS * std)
    centre, scale, low, high = (statistic.float() for statistic in (mean, std, low, high))
    constant = ~(low < high) | (scale == 0)
    constant_value = torch.where(low.isnan(), 0, low)
    centre, low, high = (torch.where(constant, constant_value, bound) for bound in (centre, low, high))
    return centre, torch.where(constant, 1, scale), low, high
