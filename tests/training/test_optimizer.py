"""The learning rate schedule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from graphslice.config import ModelConfig, OptimizerConfig, RunConfig
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.training.loop import linear_schedule, make_optimizer


def rates(steps: int, count: int, **settings) -> list[float]:
    config = OptimizerConfig(**settings)
    factor = linear_schedule(config, steps)
    return [config.peak_lr * factor(step) for step in range(count)]


def test_warm_up_then_linear_decay():
    found = rates(10, 12, peak_lr=1.0, end_lr=0.1, warmup_steps=4)
    # 4 steps up to the peak, 6 steps down by 0.15 each, then constant
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.1])


@pytest.mark.parametrize(("steps", "warmup"), [(100, 5), (1000, 50), (7, 1), (1, 1)])
def test_warm_up_takes_five_percent(steps, warmup):
    found = rates(steps, steps, peak_lr=2.0, end_lr=0.0)
    assert found[:warmup] == pytest.approx([2.0 * (i + 1) / warmup for i in range(warmup)])
    assert all(a > b for a, b in zip(found[warmup:], found[warmup + 1 :], strict=False))


def test_warm_up_beyond_the_run_is_rejected():
    with pytest.raises(InputError, match=r"optimizer.warmup_steps 1,000 must not be more than the 500 steps in total"):
        linear_schedule(OptimizerConfig(warmup_steps=1_000), 500)


def test_decay_ends_at_total_steps():
    assert rates(4, 5, peak_lr=1.0, end_lr=0.0, warmup_steps=0, total_steps=8) == pytest.approx(
        [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8]
    )
    assert rates(8, 4, peak_lr=1.0, end_lr=0.0, warmup_steps=1, total_steps=2) == pytest.approx([1, 1, 0, 0])


def test_published_graphormer_schedule():
    """Graphormer on PCQM4M: 60,000 of 1.5 million steps up to 2e-4, down to 1e-9."""
    config = OptimizerConfig(peak_lr=2e-4, end_lr=1e-9, warmup_steps=60_000, total_steps=1_500_000)
    factor = linear_schedule(config, 10)
    lr = {step: 2e-4 * factor(step) for step in (0, 29_999, 59_999, 60_000, 780_000, 1_500_000, 2_000_000)}
    assert lr[0] == pytest.approx(2e-4 / 60_000) and lr[29_999] == pytest.approx(1e-4)
    assert lr[59_999] == lr[60_000] == pytest.approx(2e-4)
    assert lr[780_000] == pytest.approx((2e-4 + 1e-9) / 2)
    assert lr[1_500_000] == lr[2_000_000] == pytest.approx(1e-9)


@pytest.mark.parametrize(("steps", "expected"), [(4, [1 / 8, 5 / 8, 1, 1 / 2]), (8, [i / 8 for i in range(1, 9)])])
def test_run_shorter_than_the_schedule_goes_through_all_of_it(steps, expected):
    """Such as a comparison of a preset with a budget in steps, which would end within the warm-up."""
    settings = OptimizerConfig(peak_lr=1.0, end_lr=0.0, warmup_steps=8, total_steps=16 if steps == 4 else 8)
    config = RunConfig(model=ModelConfig(layers=1, dim=8, heads=1, ffn_dim=8), optimizer=settings)
    module = SimpleNamespace(config=config, model=GraphTransformer(config.model), auxiliary=None)
    optimizer, schedule = make_optimizer(module, steps, lambda: 0.0, fused=False)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert found == pytest.approx(expected)
