"""The time limit of the training loop; test_resume.py tests its checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from rich.console import Console

from graphslice.data.loaders import load_dataset
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import LAST
from graphslice.training import resume, train
from graphslice.training.loop import Part, TimeBudget, TrainingLoop
from graphslice.training.network import train_without
from graphslice.training.resolve import resolve


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


@pytest.mark.parametrize("validated", [True, False])
def test_run_without_time_left_is_validated_and_ends(validated, demo_csv, tiny_config, tmp_path):
    train(tiny_config(demo_csv, trainer={"max_steps": 2}), tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    last = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    last["training"] |= {"seconds": 601.0} | ({} if validated else {"validated": 1})
    torch.save(last, tmp_path / "run" / "last.ckpt")
    config = read_checkpoint(tmp_path / "run").config
    (tmp_path / "run" / "config.yaml").write_text(
        replace(config, trainer=replace(config.trainer, max_epochs=100, max_steps=None, max_minutes=10.0)).to_yaml()
    )
    assert resume(tmp_path / "run").training["steps"] == 2
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["training"]["validated"] == 2


def test_function_after_every_epoch_can_end_the_training(demo_csv, tiny_config, tmp_path):
    """It sees the state after the validation, and a checkpoint of the same step."""
    steps = []

    def stop(loop: TrainingLoop) -> None:
        steps.append((loop.state.step, loop.state.validated, (loop.out / LAST).exists()))
        if len(steps) == 2:
            raise RuntimeError("enough")

    config, console = tiny_config(demo_csv, trainer={"max_epochs": 5}), Console(quiet=True)
    complete, data = resolve(config, load_dataset(config.data), tmp_path, console)
    fold = data.splits["train"][:15]
    with pytest.raises(RuntimeError, match="enough"):
        train_without(fold, complete, data, tmp_path / "run", Part(), console, stop)
    assert steps == [(2, 2, True), (4, 4, True)]  # 32 molecules in batches of 16
