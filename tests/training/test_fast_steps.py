"""Decision to compile a run, for which the GPU is replaced by a clock that every step advances; and fall-backs."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import graphslice as gs
from graphslice.config import RunConfig
from graphslice.ops.dispatch import OPERATORS
from graphslice.training import train
from graphslice.training.loop import FastSteps, is_worth_compiling


@pytest.mark.parametrize(
    ("minutes", "layers", "lengths", "worth"),
    [
        (10, 4, 8, False),
        (120, 4, 8, True),
        (60, 4, 50, False),
        (20, 4, 1, True),
        (60, 4, 10, True),
        (40, 12, 20, False),
    ],
)
def test_compilation_must_save_more_than_it_costs(minutes, layers, lengths, worth):
    assert is_worth_compiling(60.0 * minutes, layers, lengths) == worth


class Molecules(list):
    """A batch that can be moved to any device."""

    def to(self, device: torch.device) -> Molecules:
        return self


class Steps:
    """A simulated run on a GPU, whose steps take ``seconds`` each; some of the first take longer."""

    def __init__(self, monkeypatch, steps: int, seconds: float, minutes_left: float | None = None, **trainer) -> None:
        self.clock, self.seconds, self.compiled = 0.0, seconds, []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr("graphslice.training.loop.time.perf_counter", lambda: self.clock)
        config = RunConfig()
        config.trainer.compile, config.trainer.batch_size = trainer.pop("compile", "auto"), 50
        left = None if minutes_left is None else 60 * minutes_left
        fabric = SimpleNamespace(
            global_rank=trainer.get("rank", 0),
            world_size=trainer.get("world", 1),
            device=torch.device(trainer.get("device", "cuda")),
            broadcast=lambda decision: decision,
            strategy=SimpleNamespace(precision=SimpleNamespace(precision="bf16-mixed")),
        )
        data = SimpleNamespace(
            store=None,
            splits={"train": None},
            config=config,
            num_train_widths=lambda share: 10,
            extreme_train_batches=lambda size, share: [Molecules(range(size))] * 2,
        )

        def compile_checked(model, batches, dtype, **options) -> None:
            self.compiled.append((*map(len, batches), options))

        monkeypatch.setattr("graphslice.training.loop.compile_checked", compile_checked)
        self.fast = FastSteps(
            SimpleNamespace(config=config, model=None), data, fabric, steps, lambda: left, Console(quiet=True)
        )
        self.step = trainer.get("begin", 0)
        self.fast.begin(self.step)

    def run(self, count: int, epoch: int = 100) -> Steps:
        for i in range(count):
            if i % epoch == 0:
                self.clock += 1000.0  # a validation
                self.fast.begin_epoch()
            # Building kernels makes the first steps slow, and occasionally a later one.
            self.clock += self.seconds * (1000 if self.step < 15 or i % 10 == 0 else 1)
            self.step += 1
            self.fast.after_step(self.step)
        return self


@pytest.mark.parametrize(
    ("steps", "seconds", "run", "compiled"),
    [
        (20_000, 0.05, {}, False),  # ten batch widths of 24 s each: 1,000 s of steps are too few, 5,000 s are enough
        (100_000, 0.05, {}, True),
        (100_000, 0.005, {}, False),
        (100_000, 0.05, {"begin": 80_000}, False),  # a resumed run
        (10**9, 0.05, {"minutes_left": 15}, False),
        (10**9, 0.05, {"minutes_left": 80}, True),
    ],
)
def test_measured_steps_decide_on_compilation(steps, seconds, run, compiled, monkeypatch):
    assert bool(Steps(monkeypatch, steps, seconds, **run).run(100).compiled) == compiled


def test_validations_are_not_measured(monkeypatch):
    """A validation of 1,000 s follows every other step."""
    run = Steps(monkeypatch, 2000, seconds=0.05).run(200, epoch=2)
    assert len(run.fast._times) == 30 and not run.compiled


@pytest.mark.parametrize("epoch", [3, 100])
def test_compiles_once_after_measuring(epoch, monkeypatch):
    run = Steps(monkeypatch, 10**6, seconds=0.05)
    assert not run.run(48, epoch).compiled and not run.fast.compiled
    assert run.run(400, epoch).compiled == [(50, 50, {"mode": "reduce-overhead"})] and run.fast.compiled


@pytest.mark.parametrize(
    ("settings", "calls"), [({"compile": "off"}, 0), ({"device": "cpu"}, 0), ({"compile": "on"}, 1)]
)
def test_steps_are_measured_only_on_a_gpu(settings, calls, monkeypatch):
    assert len(Steps(monkeypatch, 10**6, seconds=0.05, **settings).run(100).compiled) == calls


def test_every_device_compiles_for_its_batch_size(monkeypatch):
    """50 molecules on three devices: 17, 17 and 16."""
    found = [Steps(monkeypatch, 1, 1.0, compile="on", rank=rank, world=3).compiled[0][0] for rank in range(3)]
    assert found == [17, 17, 16]


def test_compilation_counts_as_training_time(demo_csv, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(gs.GraphTransformer, "compile_blocks", lambda *_, **__: time.sleep(1.0) is None)
    config = tiny_config(demo_csv, trainer={"compile": "on", "max_minutes": 1e-3, "max_epochs": 1000})
    training = train(config, tmp_path / "run").training
    assert training["compiled"] is True and training["steps"] == 1 and training["seconds"] > 1


def fails(self, batch_size, **options):
    raise RuntimeError("gcc: internal compiler error")


def compute_wrong_values(self, batch_size, **options):
    run = self.run_blocks
    self._compiled = (lambda x, tensors: run(x, tensors) * 1.1), batch_size
    return True


@pytest.mark.parametrize(
    ("compile_blocks", "reason"),
    [(fails, "RuntimeError: gcc: internal compiler error"), (compute_wrong_values, "predictions differ")],
)
def test_faulty_compiled_steps_fall_back_to_eager(
    compile_blocks, reason, demo_csv, tiny_flags, tmp_path, cli, monkeypatch
):
    flags = ["train", "--dataset", demo_csv, *tiny_flags]
    assert cli(*flags, "-o", tmp_path / "eager")[0] == 0
    monkeypatch.setattr(gs.GraphTransformer, "compile_blocks", compile_blocks)
    code, _, err = cli(*flags, "--trainer.compile", "on", "-o", tmp_path / "run")
    lines = [line for line in err.splitlines() if line.startswith("compiled steps:")]
    assert code == 0 and len(lines) == 1 and reason in lines[0] and "graphslice doctor" in lines[0]
    assert json.loads((tmp_path / "run" / "training.json").read_text())["compiled"] is False
    scores = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("run", "eager")]
    assert scores[0] == scores[1]


def test_faulty_kernel_of_a_gpu_is_replaced_by_plain_torch(monkeypatch):
    disabled = []
    monkeypatch.setattr("graphslice.training.loop.extreme_batches", lambda *_, **__: [])
    monkeypatch.setattr("graphslice.training.loop.faulty_backends", lambda *_: {"column_sort": "wrong"})
    monkeypatch.setattr(OPERATORS["column_sort"], "disable", disabled.append)
    for device, expected in (("cpu", []), ("cuda", [*OPERATORS["column_sort"].backends])):
        Steps(monkeypatch, 1, seconds=1.0, device=device).fast.check_backends()
        assert disabled == expected
