"""Devices and precision, for which torch's GPU queries are mocked, and runs of two processes."""

import json
import sys

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from graphslice.config import TrainerConfig
from graphslice.errors import InputError
from graphslice.training import devices, resume, train
from graphslice.training.devices import (
    Devices,
    choose_devices,
    choose_precision,
    launched_processes,
)

OLD, TURING, AMPERE, HOPPER = (6, 1), (7, 5), (8, 0), (9, 0)


@pytest.fixture
def gpus(monkeypatch):
    """``gpus((8, 0), (7, 5))``: simulate GPUs of these compute capabilities, without a launcher."""

    def have(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: capabilities[i])
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # true by emulation

    for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    return have


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ([], "32-true"),
        ([OLD], "32-true"),
        ([TURING], "16-mixed"),
        ([AMPERE], "bf16-mixed"),
        ([HOPPER, TURING], "16-mixed"),
    ],
)
def test_precision_by_compute_capability(capabilities, precision):
    assert choose_precision("auto", capabilities) == precision


def test_bfloat16_is_rejected_on_older_gpus():
    with pytest.raises(InputError, match=r"compute capability 7\.5 has no bfloat16: .*16-mixed or 32"):
        choose_precision("bf16-mixed", [AMPERE, TURING])
    assert choose_precision("bf16-mixed", [AMPERE]) == choose_precision("bf16-mixed", []) == "bf16-mixed"


def test_precision_depends_only_on_the_gpus_used(gpus):
    gpus(AMPERE, TURING)
    assert choose_devices(TrainerConfig(devices="1")).precision == "bf16-mixed"
    assert choose_devices(TrainerConfig(devices="2")).precision == "16-mixed"


@pytest.mark.parametrize(
    ("available", "batch_size", "used"),
    [(0, 64, 1), (1, 8, 1), (8, 8, 1), (8, 32, 1), (8, 100, 3), (8, 256, 8), (2, 256, 2)],
)
def test_number_of_gpus_follows_the_batch_size(available, batch_size, used, gpus):
    gpus(*[AMPERE] * available)
    assert choose_devices(TrainerConfig(batch_size=batch_size)).count == used


def test_unused_gpus_are_reported(gpus):
    gpus(*[AMPERE] * 8)
    chosen = choose_devices(TrainerConfig(batch_size=64))
    assert chosen == Devices("cuda", 2, 1, "bf16-mixed", chosen.note) and "2 of 8 GPUs used" in chosen.note
    assert choose_devices(TrainerConfig(batch_size=256)).note is None


def test_more_devices_than_molecules_per_batch_are_rejected(gpus):
    gpus(*[AMPERE] * 8)
    with pytest.raises(InputError, match=r"trainer\.devices must be at least 1"):
        choose_devices(TrainerConfig(devices="0"))
    with pytest.raises(InputError, match="on 8 devices must be at least 8, not 7"):
        choose_devices(TrainerConfig(batch_size=7, devices="8"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, (4, 2)),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}, (4, 1)),
        ({"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2"}, (4, 2)),
        ({"SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, (1, 1)),
        ({"SLURM_NTASKS": "1", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "bash"}, (None, 1)),
        ({"SLURM_NNODES": "2"}, (None, 1)),
    ],
    ids=["none", "torchrun", "torchrun in a job", "srun", "srun of one", "shell in a job", "job without srun"],
)
def test_launched_processes_are_detected(environment, expected, monkeypatch):
    monkeypatch.setattr("os.environ", environment)
    assert launched_processes() == expected


def test_launcher_determines_the_number_of_devices(gpus, monkeypatch):
    gpus(*[AMPERE] * 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    chosen = choose_devices(TrainerConfig(batch_size=8))
    assert chosen.count == 4 and "4 of 8 GPUs used" in chosen.note
    with pytest.raises(InputError, match=r"trainer.devices is 8, but .* or set trainer.devices to 4"):
        choose_devices(TrainerConfig(batch_size=8, devices="8"))


def test_notebook_uses_one_gpu(gpus, monkeypatch):
    """Lightning would launch the script again, which a notebook does not have."""
    gpus(AMPERE, AMPERE)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    chosen = choose_devices(TrainerConfig(batch_size=256))
    assert chosen.count == 1 and chosen.note.startswith("1 of 2 GPUs used")


def test_mac_trains_on_the_cpu_by_default(gpus, monkeypatch):
    gpus()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_devices(TrainerConfig()) == Devices("cpu", 1, 1, "32-true", None)
    chosen = choose_devices(TrainerConfig(accelerator="mps"))
    assert chosen == Devices("mps", 1, 1, "32-true", chosen.note) and "experimental" in chosen.note


def test_float16_training_with_gradient_scaling(tiny_config, demo_csv, weights_of, tmp_path, monkeypatch):
    """As on V100 and T4, but on the CPU: with clipping, and a scaler that skips overflowing steps."""
    config = tiny_config(
        demo_csv,
        model={"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0},
        trainer={"gradient_clip": 0.1, "max_epochs": 6},
    )
    expected = train(config, tmp_path / "32").metrics["valid"]["mae"]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)

    def in_float16(**settings):
        del settings["precision"]  # Fabric would replace it by bf16-mixed on a CPU
        return Fabric(**settings, plugins=MixedPrecision("16-mixed", "cpu", scaler))

    monkeypatch.setattr(devices, "Fabric", in_float16)
    result = train(config, tmp_path / "16")
    assert result.training["precision"] == "16-mixed" and 1 < scaler.get_scale() < 2.0**18
    assert all(torch.isfinite(weight).all() for weight in weights_of(tmp_path / "16").values())
    assert result.metrics["valid"]["mae"] == pytest.approx(expected, rel=0.05)
    (tmp_path / "32" / "metrics.json").unlink()
    text = (tmp_path / "32" / "config.yaml").read_text()
    (tmp_path / "32" / "config.yaml").write_text(text.replace("max_epochs: 6", "max_epochs: 7"))
    assert resume(tmp_path / "32").training["precision"] == "16-mixed", "a run is continued in another precision"


def train_on_two(start, wait_for_exit, config, tmp_path) -> None:
    """Train with two processes on the CPU of this machine."""
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    process = start("train", "--config", tmp_path / "c.yaml", "--trainer.devices", 2, "--out", tmp_path / "two")
    code, out, err = wait_for_exit(process)
    assert code == 0, err
    assert err.count("validation MAE") <= config.trainer.max_epochs  # one process reports
    assert out.count("test MAE") == 1


@pytest.mark.slow
def test_two_processes_match_one(start, wait_for_exit, demo_rows, tiny_config, weights_of, tmp_path):
    """47 training molecules in batches of 8, 7 for validation, labels with gaps: nothing divides evenly."""
    table = demo_rows.assign(length=demo_rows["smiles"].str.len().astype(float))
    table.loc[::3, "gap_ev"] = np.nan
    table.loc[1::4, "length"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(
        tmp_path / "t.csv",
        data={"targets": "gap_ev,length"},
        model={"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0},
        trainer={"batch_size": 8, "max_epochs": 2, "metric": "mae"},
    )
    train_on_two(start, wait_for_exit, config, tmp_path)
    train(config, tmp_path / "one")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-4, err_msg=name)
    metrics = [json.loads((tmp_path / run / "metrics.json").read_text()) for run in ("one", "two")]
    for part in ("valid", "test"):
        assert metrics[1][part]["mae"] == pytest.approx(metrics[0][part]["mae"], rel=1e-4)
        for target, score in metrics[0][part]["targets"].items():
            other = metrics[1][part]["targets"][target]
            assert other.pop("kind") == score.pop("kind") == "regression"
            # Both are nan in the same places: with so few molecules, intervals are unbounded.
            known = {name for name, value in score.items() if value is not None}
            assert known == {name for name, value in other.items() if value is not None}
            for name in known:
                assert other[name] == pytest.approx(score[name], rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all(start, wait_for, wait_for_exit, cli, demo_csv, tiny_config, tmp_path):
    """Only the first of two processes gets the signal; both stop between two steps, and the run can be resumed."""
    config = tiny_config(demo_csv, trainer={"max_epochs": 10**5, "batch_size": 8})
    (tmp_path / "c.yaml").write_text(config.to_yaml())
    process = start("train", "--config", tmp_path / "c.yaml", "--trainer.devices", 2, "--out", tmp_path / "run")
    wait_for(process, tmp_path / "run" / "last.ckpt")
    process.terminate()
    code, _, err = wait_for_exit(process)
    assert code == 130 and "Error" not in err and err.count("stopped; continue with") == 1, err
