"""The mixer slice-quantile compared with numpy."""

import numpy as np
import pytest
import torch
from mixer_samples import mixer_of, without_projections

from graphslice.nn.context import AttentionContext


@pytest.mark.parametrize("keep_fraction", [0.0, 0.5, 1.0])
def test_maxima_of_aggregated_values_match_numpy(keep_fraction):
    mixer = without_projections(mixer_of("slice-quantile", keep_fraction=keep_fraction))
    x, weights = torch.randn(1, 6, 12, dtype=torch.float64), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    output = mixer(x, AttentionContext(torch.tensor([6]), 6, attn_weights=weights))[0].detach().numpy()
    aggregated = np.concatenate([(weights[0, h] @ x[0, :, 4 * h : 4 * h + 4]).numpy() for h in range(3)], axis=1)
    local = np.arange(12) % 4 < round(4 * keep_fraction)
    np.testing.assert_allclose(output, np.where(local, aggregated, aggregated.max(axis=0)), atol=1e-6)
