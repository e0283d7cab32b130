"""aggregate_sort compared with its definition, for samples that are too large for its kernel too."""

import pytest
import torch

from graphslice.ops import aggregate_sort


@pytest.mark.parametrize("width", [1, 20, 257, 300])
def test_matches_definition(width):
    attn_weights, v = torch.rand(1, 1, width, width), torch.randn(1, width, 16)
    lengths = torch.tensor([width])
    torch.testing.assert_close(
        aggregate_sort(attn_weights, v, lengths), (attn_weights[:, 0] @ v).sort(dim=1).values, rtol=1e-4, atol=1e-4
    )
    assert aggregate_sort.choose(attn_weights, v, lengths) == "torch"
