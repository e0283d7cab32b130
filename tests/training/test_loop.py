"""The training loop: its limits, learning rates, and whether it is compiled; test_resume.py tests its checkpoints."""

import io
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from rich.console import Console

import graphslice as gs
from graphslice.config import ModelConfig, OptimizerConfig, RunConfig
from graphslice.data.loaders import load_dataset
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.ops.dispatch import OPERATORS
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import LAST
from graphslice.training import resume, train
from graphslice.training.loop import (
    FastSteps,
    TrainingLoop,
    linear_schedule,
    make_optimizer,
)
from graphslice.training.resolve import resolve
from graphslice.training.run import train_without


def test_run_ends_at_its_time_limit(tmp_path, demo_csv, tiny_config):
    """The run is validated and the learning rate has decayed by then, although many steps remain."""
    limits = {"max_minutes": 0.005, "max_epochs": 100_000, "checkpoint_minutes": 1e-9}
    result = train(tiny_config(demo_csv, trainer=limits), tmp_path / "run")
    assert result.training["seconds"] >= 0.3 and result.training["steps"] < 300_000
    (log,) = (tmp_path / "run").glob("logs/version_0/metrics.csv")
    log = pd.read_csv(log)
    seconds = log["seconds"].dropna().tolist()
    assert seconds == sorted(seconds) and seconds[-1] >= 0.3
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["lr_schedulers"][0]
    assert state["_last_lr"][0] < 1e-4  # the peak is 1e-3
    again = resume(tmp_path / "run")  # its time is used up, as the checkpoint contains the clock
    assert again.training["steps"] <= result.training["steps"] + 1
    assert again.training["seconds"] >= result.training["seconds"]


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
        train_without(fold, complete, data, tmp_path / "run", "", console, after_epoch=stop)
    assert steps == [(2, 2, True), (4, 4, True)]  # 32 molecules in batches of 16


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
    with pytest.raises(InputError, match=r"optimizer\.warmup_steps must be from 0 to 500"):
        linear_schedule(OptimizerConfig(warmup_steps=1_000), 500)


def test_decay_ends_at_total_steps():
    assert rates(4, 5, peak_lr=1.0, end_lr=0.0, warmup_steps=0, total_steps=8) == pytest.approx(
        [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8]
    )
    assert rates(8, 4, peak_lr=1.0, end_lr=0.0, warmup_steps=1, total_steps=2) == pytest.approx([1, 1, 0, 0])


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


@pytest.fixture
def simulated(monkeypatch):
    """``simulated(steps, seconds)``: make some steps of a run on a GPU, of which the first and every tenth are slow,
    and return the options of each compilation."""
    clock = [0.0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr("graphslice.training.loop.time.perf_counter", lambda: clock[0])

    def run(steps, seconds, count=100, begin=0, minutes_left=None, setting="auto", device="cuda", epoch=100) -> list:
        compiled: list = []
        monkeypatch.setattr(
            "graphslice.training.loop.compile_checked", lambda *arguments, **options: compiled.append(options)
        )
        config = RunConfig.from_dict({"trainer": {"compile": setting, "batch_size": 50}})
        precision = SimpleNamespace(precision=SimpleNamespace(precision="bf16-mixed"))
        fabric = SimpleNamespace(global_rank=0, world_size=1, device=torch.device(device), strategy=precision)
        fabric.broadcast = lambda decision: decision
        data = SimpleNamespace(num_train_widths=lambda share: 10, extreme_train_batches=lambda size, share: [])
        left = None if minutes_left is None else 60 * minutes_left
        module = SimpleNamespace(config=config, model=None)
        fast = FastSteps(module, data, fabric, steps, lambda: left, Console(quiet=True))
        fast.begin(begin)
        for step in range(begin, begin + count):
            if step % epoch == 0:
                clock[0] += 1000.0  # a validation
                fast.begin_epoch()
            clock[0] += seconds * (1000 if step < begin + 15 or step % 10 == 0 else 1)
            fast.after_step(step + 1)
        assert fast.compiled == bool(compiled)
        return compiled

    return run


@pytest.mark.parametrize(
    ("steps", "options", "compiled"),
    [
        (20_000, {}, False),  # ten batch widths of 24 s each: 1,000 s of steps are too few, 5,000 s are enough
        (100_000, {}, True),
        (100_000, {"begin": 80_000}, False),  # a resumed run
        (10**9, {"minutes_left": 15}, False),
        (10**6, {"count": 48}, False),  # not measured yet
        (10**6, {"count": 400, "epoch": 3}, True),
        (10**6, {"setting": "off"}, False),
        (10**6, {"device": "cpu"}, False),
        (1, {"setting": "on"}, True),
    ],
)
def test_measured_steps_decide_on_compilation(steps, options, compiled, simulated):
    assert simulated(steps, 0.05, **options) == [{"mode": "reduce-overhead"}] * compiled


def test_compilation_counts_as_training_time(demo_csv, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(gs.GraphTransformer, "compile_blocks", lambda *_, **__: time.sleep(1.0) is None)
    config = tiny_config(demo_csv, trainer={"compile": "on", "max_minutes": 1e-3, "max_epochs": 1000})
    training = train(config, tmp_path / "run").training
    assert training["compiled"] is True and training["steps"] == 1 and training["seconds"] > 1


def test_faulty_compiled_steps_fall_back_to_eager(demo_csv, run_directory, tiny_config, tmp_path, monkeypatch):
    def compute_wrong_values(self, batch_size, **options):
        run = self.run_blocks
        self._compiled = (lambda x, tensors: run(x, tensors) * 1.1), batch_size
        return True

    monkeypatch.setattr(gs.GraphTransformer, "compile_blocks", compute_wrong_values)
    screen = io.StringIO()
    train(tiny_config(demo_csv, trainer={"compile": "on"}), tmp_path / "run", console=Console(file=screen, width=500))
    lines = [line for line in screen.getvalue().splitlines() if line.startswith("warning: compiled steps:")]
    assert len(lines) == 1 and "predictions differ" in lines[0] and "graphslice doctor" in lines[0]
    assert json.loads((tmp_path / "run" / "training.json").read_text())["compiled"] is False
    scores = [json.loads((folder / "metrics.json").read_text()) for folder in (tmp_path / "run", run_directory)]
    assert scores[0] == scores[1]


def test_faulty_kernel_of_a_gpu_is_replaced_by_plain_torch(monkeypatch):
    disabled = []
    monkeypatch.setattr("graphslice.training.loop.extreme_batches", lambda *_, **__: [])
    monkeypatch.setattr("graphslice.training.loop.faulty_backends", lambda *_: {"column_sort": "wrong"})
    monkeypatch.setattr(OPERATORS["column_sort"], "disable", disabled.append)
    data = SimpleNamespace(store=None, splits={"train": None}, config=RunConfig())
    precision = SimpleNamespace(precision=SimpleNamespace(precision="bf16-mixed"))
    for device, expected in (("cpu", []), ("cuda", [*OPERATORS["column_sort"].backends])):
        fabric = SimpleNamespace(global_rank=0, world_size=1, device=torch.device(device), strategy=precision)
        module = SimpleNamespace(config=RunConfig(), model=None)
        FastSteps(module, data, fabric, 1, lambda: None, Console(quiet=True)).check_backends()
        assert disabled == expected
