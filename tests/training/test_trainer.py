from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import MixedPrecision

from graphslice.errors import InputError
from graphslice.training import train
from graphslice.training.callbacks import StopAllRanks
from graphslice.training.devices import Devices
from graphslice.training.trainer import make_trainer


@pytest.fixture
def trainer_on(tiny_config, tmp_path):
    return lambda *devices: make_trainer(tiny_config(), Devices(*devices), tmp_path, 10, "mae", [], fresh=True)


def test_several_devices_exchange_only_gradients(trainer_on):
    """Neither buffers nor, at every step, stop signals are exchanged."""
    trainer = trainer_on("cpu", 2, 1, "32-true", None)
    assert trainer.world_size == 2 and trainer.strategy._ddp_kwargs == {"broadcast_buffers": False}
    assert any(isinstance(callback, StopAllRanks) for callback in trainer.callbacks)


def test_single_device_needs_no_synchronisation(trainer_on):
    trainer = trainer_on("cpu", 1, 1, "bf16-mixed", None)
    assert trainer.world_size == 1 and trainer.precision == "bf16-mixed"
    assert not any(isinstance(callback, StopAllRanks) for callback in trainer.callbacks)


def test_unavailable_accelerator_is_rejected(trainer_on):
    with pytest.raises(InputError, match="this machine cannot train with these settings"):
        trainer_on("tpu", 1, 1, "32-true", None)


def test_float16_training_with_gradient_scaling(tiny_config, demo_csv, weights_of, tmp_path, monkeypatch):
    """As on V100 and T4, but on the CPU: with clipping, and a scaler that skips overflowing steps."""
    config = tiny_config(
        demo_csv,
        model={"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0},
        trainer={"gradient_clip": 0.1, "max_epochs": 6},
    )
    expected = train(config, tmp_path / "32").metrics["valid"]["mae"]
    scaler, trainer = torch.amp.GradScaler("cpu", init_scale=2.0**18), pl.Trainer

    def in_float16(**settings):
        del settings["precision"]  # Lightning would replace it by bf16-mixed on a CPU
        settings["plugins"] = [*settings["plugins"], MixedPrecision("16-mixed", "cpu", scaler)]
        return trainer(**settings)

    monkeypatch.setattr(pl, "Trainer", in_float16)
    result = train(config, tmp_path / "16")
    assert result.training["precision"] == "16-mixed" and 1 < scaler.get_scale() < 2.0**18
    assert all(torch.isfinite(weight).all() for weight in weights_of(tmp_path / "16").values())
    assert result.metrics["valid"]["mae"] == pytest.approx(expected, rel=0.05)
