"""The mixer slice-quantile compared with numpy."""

import numpy as np
import pytest
import torch
from mixer_samples import mixer_of, without_projections

from graphslice.nn.context import AttentionContext


@pytest.mark.parametrize("statistic", ["maximum", "minimum", "fixed", "learnable"])
@pytest.mark.parametrize("keep_fraction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("split_by_head", [False, True])
def test_quantiles_match_numpy(statistic, keep_fraction, split_by_head):
    mixer = without_projections(
        mixer_of("slice-quantile", keep_fraction=keep_fraction, statistic=statistic, split_by_head=split_by_head)
    )
    x = torch.randn(2, 8, 12, dtype=torch.float64)
    output = mixer(x, AttentionContext(torch.tensor([6, 1]), 8)).detach().numpy()
    head, channel = np.arange(12) // 4, np.arange(12) % 4
    local = head < round(3 * keep_fraction) if split_by_head else channel < round(4 * keep_fraction)
    qs = (np.arange((~local).sum()) + 0.5) / max(1, (~local).sum())
    for b, rows in enumerate((6, 1)):
        values = x[b, :rows].numpy()
        np.testing.assert_array_equal(output[b, :rows, local], values[:, local].T)
        for q, c in zip(qs, np.flatnonzero(~local), strict=True):
            quantile = {"maximum": 1.0, "minimum": 0.0}.get(statistic, q)
            np.testing.assert_allclose(output[b, :rows, c], np.quantile(values[:, c], quantile), atol=1e-6)


@pytest.mark.parametrize("source", ["aggregated", "values"])
def test_statistic_is_computed_from_its_source(source):
    mixer = without_projections(mixer_of("slice-quantile", source=source))
    x, weights = torch.randn(1, 6, 12, dtype=torch.float64), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    output = mixer(x, AttentionContext(torch.tensor([6]), 6, attn_weights=weights))[0]
    aggregated = torch.cat([weights[0, h] @ x[0, :, 4 * h : 4 * h + 4] for h in range(3)], dim=1)
    for c in range(12):
        pooled = (aggregated if source == "aggregated" else x[0])[:, c].max()
        torch.testing.assert_close(output[:, c], aggregated[:, c] if c % 4 < 2 else pooled.expand(6))


def test_learnable_quantile_has_a_gradient():
    mixer = without_projections(mixer_of("slice-quantile", keep_fraction=0.0, statistic="learnable"))
    x = torch.arange(5.0, dtype=torch.float64)[None, :, None].expand(1, 5, 12).contiguous()
    mixer(x, AttentionContext(torch.tensor([5]), 5)).sum().backward()
    assert (mixer.q_logits.grad > 0).all()
