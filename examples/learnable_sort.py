"""A mixer outside the package: a sort whose order is learned, which Sliceformer leaves to future work (section 5).

    GRAPHSLICE_MIXERS=examples/learnable_sort.py graphslice compare demo --mixers \\
        slice-ascend,learnable-sort,learnable-sort:temperature=1.0 --seeds 2 --budget 6epochs
    GRAPHSLICE_MIXERS=examples/learnable_sort.py python examples/digits.py --mixer learnable-sort
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphslice.errors import check_positive
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer, register
from graphslice.ops import column_sort


@register("learnable-sort")
class LearnableSort(Mixer):
    """Every channel of ``P V`` in the order of a learned key: ``Softmax(-|Sort(k_c) 1^T - 1 k_c^T| / tau) (P V)_c``.

    The key is ``K = P X W_k``, and the matrix is SoftSort (Prillo and Eisenschlos 2020), which tends to the permutation
    that sorts k_c as tau falls to 0. With ``W_k = W_v`` the limit is ``slice-ascend``. Gradients reach the key, so
    training chooses the order, and by the size of W_k how sharp it is. Time and memory are ``C N^2`` numbers.

    Args:
        dim, heads, settings: as for :class:`Mixer`.
        temperature: tau.

    Raises:
        InputError: if ``temperature`` is not above 0.
    """

    reads = ("attn_weights",)

    def __init__(self, dim: int, heads: int, *, temperature: float = 0.1, **settings) -> None:
        super().__init__(dim, heads, **settings)
        check_positive("temperature of mixer learnable-sort", temperature)
        self.temperature, self.key, self.value = temperature, nn.Linear(dim, dim), nn.Linear(dim, dim)

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        k, v = (context.aggregate(linear(x), self.active_dropout) for linear in (self.key, self.value))
        places = column_sort(k, context.lengths)
        distances = (places[:, :, None] - k[:, None]).abs()  # [B, place, row, C]
        scores = (-distances / self.temperature).masked_fill(~context.mask[:, None, :, None], -torch.inf)
        return torch.einsum("bijc,bjc->bic", scores.softmax(dim=2), v)
