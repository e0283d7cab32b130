from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from graphslice.checkpoint import read_checkpoint
from graphslice.config import OptimizerConfig, TrainerConfig
from graphslice.training import resume, train
from graphslice.training.schedule import TimeBudget, default_epochs, linear_schedule, run_steps


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


def test_schedule_in_the_optimiser():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, linear_schedule(OptimizerConfig(peak_lr=1.0, end_lr=0.0, warmup_steps=2), 4)
    )
    found = []
    for _ in range(4):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert found == pytest.approx([0.5, 1.0, 1.0, 0.5])


def test_run_ends_at_its_time_limit(tmp_path, demo_csv, tiny_config):
    """The run is validated and the learning rate has decayed by then, although many steps remain."""
    limits = {"max_minutes": 0.02, "max_epochs": 100_000, "checkpoint_minutes": 1e-9}
    result = train(tiny_config(demo_csv, trainer=limits), tmp_path / "run")
    assert result.training["seconds"] >= 1.2 and result.training["steps"] < 300_000
    (log,) = (tmp_path / "run").glob("logs/version_0/metrics.csv")
    log = pd.read_csv(log)
    seconds = log["seconds"].dropna().tolist()
    assert seconds == sorted(seconds) and seconds[-1] >= 1.2
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["lr_schedulers"][0]
    assert state["_last_lr"][0] < 1e-4  # the peak is 1e-3
    again = resume(tmp_path / "run")  # its time is used up, as the checkpoint contains the clock
    assert again.training["steps"] <= result.training["steps"] + 1
    assert again.training["seconds"] >= result.training["seconds"]


@pytest.mark.parametrize(
    ("molecules", "batch_size", "epochs"),
    [
        (3, 32, 100),
        (200, 32, 30),
        (4_000, 32, 30),
        (10_000, 32, 30),
        (40_000, 32, 15),
        (160_000, 32, 8),
        (10**8, 32, 5),
    ],
)
def test_default_epochs_depend_on_the_number_of_molecules(molecules, batch_size, epochs):
    assert default_epochs(molecules, -(-molecules // batch_size)) == epochs


@pytest.mark.parametrize("molecules", [1, 10, 1_000, 9_999, 10_001, 10**6])
def test_more_molecules_never_give_fewer_steps(molecules):
    steps = [default_epochs(rows, -(-rows // 32)) * -(-rows // 32) for rows in (molecules, 2 * molecules)]
    assert steps[0] <= steps[1]


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({}, 30 * 7),
        ({"max_epochs": 2}, 14),
        ({"max_steps": 5}, 5),
        ({"max_steps": 500}, 500),
        ({"max_epochs": 2, "max_steps": 500}, 14),
        ({"max_minutes": 1.0}, 7_000_000),
        ({"max_minutes": 1.0, "max_steps": 500}, 500),
    ],
)
def test_run_ends_at_the_first_limit(limits, steps):
    assert run_steps(TrainerConfig(**limits), 200, 7) == steps


def test_elapsed_fraction_is_known_from_the_first_step():
    """Also if a run is resumed between two steps at which the devices synchronise."""
    budget = TimeBudget(minutes=10)
    budget.resume(540.0)
    assert budget.fraction == pytest.approx(0.9) and budget.seconds == 540.0  # the time before the first step is free
    budget.start()
    assert 540.0 <= budget.seconds < 541 and 59 < budget.seconds_left <= 60


def test_no_time_limit():
    budget = TimeBudget(minutes=None)
    budget.resume(1e9)
    assert budget.fraction == 0 and budget.seconds_left is None


@pytest.mark.parametrize(("validated", "steps"), [(True, 2), (False, 3)])
def test_exhausted_time_limit_ends_a_validated_run(validated, steps, demo_csv, tiny_config, tmp_path):
    """Without a validation of the last step, one more step is made and validated."""
    train(tiny_config(demo_csv, trainer={"max_steps": 2}), tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    last = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    last["training"] |= {"seconds": 601.0} | ({} if validated else {"validated": 1})
    torch.save(last, tmp_path / "run" / "last.ckpt")
    config = read_checkpoint(tmp_path / "run").config
    (tmp_path / "run" / "config.yaml").write_text(
        replace(config, trainer=replace(config.trainer, max_epochs=100, max_steps=None, max_minutes=10.0)).to_yaml()
    )
    assert resume(tmp_path / "run").training["steps"] == steps
