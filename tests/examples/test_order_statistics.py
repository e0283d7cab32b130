"""The mixer with other order statistics compared with numpy."""

import numpy as np
import pytest
import torch

import order_statistics
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import MIXERS, check_user_mixer

del MIXERS["order-statistics"]  # the tests of all mixers are about those of the package


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MIXERS, "order-statistics", order_statistics.OrderStatistics)


@pytest.mark.parametrize("statistic", order_statistics.STATISTICS)
@pytest.mark.parametrize("source", ["aggregated", "values"])
@pytest.mark.parametrize("split_by_head", [False, True])
def test_statistics_match_numpy(statistic, source, split_by_head):
    settings = {"statistic": statistic, "source": source, "split_by_head": split_by_head}
    check_user_mixer("order-statistics", 16, 4, settings)
    mixer = order_statistics.OrderStatistics(16, 4, **settings).double()
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(16))
            linear.bias.zero_()
    x, weights = torch.randn(1, 6, 16, dtype=torch.float64), torch.rand(1, 4, 6, 6, dtype=torch.float64)
    output = mixer(x, AttentionContext(torch.tensor([6]), 6, attn_weights=weights))[0]
    if statistic == "learnable":
        output.sum().backward()
        assert mixer.logits.grad.abs().sum() > 0
    aggregated = np.concatenate([(weights[0, h] @ x[0, :, 4 * h : 4 * h + 4]).numpy() for h in range(4)], axis=1)
    local = np.arange(16) // 4 < 2 if split_by_head else np.arange(16) % 4 < 2
    np.testing.assert_allclose(output.detach()[:, local], aggregated[:, local])
    pooled = aggregated if source == "aggregated" else x[0].numpy()
    for k, channel in enumerate(np.flatnonzero(~local)):
        level = {"maximum": 1.0, "minimum": 0.0}.get(statistic, (k + 0.5) / 8)
        expected = np.quantile(pooled[:, channel], level)
        np.testing.assert_allclose(output.detach()[:, channel], np.full(6, expected), atol=1e-6)
