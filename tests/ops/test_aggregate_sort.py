"""aggregate_sort of samples that are too large for its kernel."""

import pytest
import torch

from graphslice.ops import aggregate_sort


@pytest.mark.parametrize("width", [257, 300])
def test_samples_beyond_kernel_limit_use_reference(width):
    attn_weights, v = torch.rand(1, 1, width, width), torch.randn(1, width, 16)
    lengths = torch.tensor([width])
    torch.testing.assert_close(
        aggregate_sort(attn_weights, v, lengths), (attn_weights[:, 0] @ v).sort(dim=1).values, rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ValueError, match=f"{width}, 16"):
        aggregate_sort.using("numba")(attn_weights, v, lengths)
