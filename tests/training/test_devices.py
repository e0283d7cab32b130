"""Choice of devices and precision; torch's GPU queries are mocked, so no GPU is needed."""

from __future__ import annotations

import sys

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.strategies import DDPStrategy, SingleDeviceStrategy

from graphslice.config import TrainerConfig
from graphslice.errors import InputError
from graphslice.training import devices, resume, train
from graphslice.training.devices import (
    Devices,
    choose_devices,
    choose_precision,
    device_share,
    launched_processes,
    make_fabric,
    worthwhile_gpus,
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


# --- precision ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("wanted", "precision"), [("32", "32-true"), ("16-mixed", "16-mixed")])
def test_configured_precision_is_used(wanted, precision):
    assert choose_precision(wanted, [HOPPER]) == choose_precision(wanted, [OLD]) == precision


def test_bfloat16_is_rejected_on_older_gpus():
    with pytest.raises(InputError, match=r"compute capability 7\.5 has no bfloat16: .*16-mixed or 32"):
        choose_precision("bf16-mixed", [AMPERE, TURING])
    assert choose_precision("bf16-mixed", [AMPERE]) == choose_precision("bf16-mixed", []) == "bf16-mixed"


def test_precision_depends_only_on_the_gpus_used(gpus):
    gpus(AMPERE, TURING)
    assert choose_devices(TrainerConfig(devices="1")).precision == "bf16-mixed"
    assert choose_devices(TrainerConfig(devices="2")).precision == "16-mixed"


# --- number of devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("available", "batch_size", "used"),
    [(0, 64, 1), (1, 8, 1), (8, 8, 1), (8, 32, 1), (8, 100, 3), (8, 256, 8), (2, 256, 2)],
)
def test_number_of_gpus_follows_the_batch_size(available, batch_size, used):
    assert worthwhile_gpus(available, batch_size) == used


def test_unused_gpus_are_reported(gpus):
    gpus(*[AMPERE] * 8)
    chosen = choose_devices(TrainerConfig(batch_size=64))
    assert chosen == Devices("cuda", 2, 1, "bf16-mixed", chosen.note) and "2 of 8 GPUs used" in chosen.note
    assert choose_devices(TrainerConfig(batch_size=256)).note is None


def test_configured_number_of_devices_is_used(gpus):
    gpus(*[AMPERE] * 8)
    chosen = choose_devices(TrainerConfig(batch_size=8, devices="8"))
    assert (chosen.count, chosen.note, chosen.total) == (8, None, 8)


@pytest.mark.parametrize("devices", ["0,1", "0", "two"])
def test_invalid_number_of_devices_is_rejected(devices):
    """Lightning accepts more forms, but the length of an epoch depends on the number of devices."""
    with pytest.raises(InputError, match=r"trainer\.devices must be auto or a positive number"):
        choose_devices(TrainerConfig(devices=devices))


def test_more_devices_than_molecules_per_batch_are_rejected(gpus):
    gpus(*[AMPERE] * 8)
    with pytest.raises(InputError, match=r"8 devices need at least as many molecules.*batch_size is 7"):
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
    assert chosen.count == 1 and chosen.note.startswith("1 of 2 GPUs used: a notebook")


# --- kind of device -------------------------------------------------------------------------------


def test_mac_trains_on_the_cpu_by_default(gpus, monkeypatch):
    gpus()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_devices(TrainerConfig()) == Devices("cpu", 1, 1, "32-true", None)
    chosen = choose_devices(TrainerConfig(accelerator="mps"))
    assert chosen == Devices("mps", 1, 1, "32-true", chosen.note) and "experimental" in chosen.note


def test_cpu_can_be_chosen_with_gpus_present(gpus):
    gpus(AMPERE, AMPERE)
    chosen = choose_devices(TrainerConfig(accelerator="cpu", batch_size=256))
    assert chosen == Devices("cpu", 1, 1, "32-true", None)


@pytest.fixture
def fabric_on(tmp_path):
    return lambda *devices: make_fabric(Devices(*devices), tmp_path, fresh=True)


def test_several_devices_exchange_only_gradients(fabric_on, monkeypatch):
    """Not the buffers at every step."""
    found = {}
    monkeypatch.setattr(devices, "DDPStrategy", lambda **options: found.update(options) or DDPStrategy(**options))
    assert fabric_on("cpu", 2, 1, "32-true", None).world_size == 2 and found == {"broadcast_buffers": False}


def test_single_device_needs_no_synchronisation(fabric_on):
    fabric = fabric_on("cpu", 1, 1, "bf16-mixed", None)
    assert isinstance(fabric.strategy, SingleDeviceStrategy) and device_share(fabric).precision == "bf16-mixed"


def test_unavailable_accelerator_is_rejected(fabric_on):
    with pytest.raises(InputError, match="this machine cannot train with these settings"):
        fabric_on("tpu", 1, 1, "32-true", None)


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
