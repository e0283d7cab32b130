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


def test_several_devices_exchange_gradients_alone(trainer_on):
    """Neither their constants, nor at every step whether one was told to end."""
    trainer = trainer_on("cpu", 2, 1, "32-true", None)
    assert trainer.world_size == 2 and trainer.strategy._ddp_kwargs == {"broadcast_buffers": False}
    assert any(isinstance(callback, StopAllRanks) for callback in trainer.callbacks)


def test_one_device_has_nobody_to_ask(trainer_on):
    trainer = trainer_on("cpu", 1, 1, "bf16-mixed", None)
    assert trainer.world_size == 1 and trainer.precision == "bf16-mixed"
    assert not any(isinstance(callback, StopAllRanks) for callback in trainer.callbacks)


def test_what_the_machine_has_not(trainer_on):
    with pytest.raises(InputError, match="this machine cannot train with these settings"):
        trainer_on("tpu", 1, 1, "32-true", None)


def test_float16_with_its_scaler(tiny_config, demo_csv, weights_of, tmp_path, monkeypatch):
    """As V100 and T4 train, here on the CPU: with clipping, and a scaler that skips what overflows."""
    config = tiny_config(
        demo_csv,
        model={"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0},
        trainer={"gradient_clip": 0.1, "max_epochs": 6},
    )
    expected = train(config, tmp_path / "32").metrics["valid"]["mae"]
    scaler, trainer = torch.amp.GradScaler("cpu", init_scale=2.0**18), pl.Trainer

    def in_float16(**settings):
        del settings["precision"]  # Lightning makes bf16-mixed of it on a CPU
        settings["plugins"] = [*settings["plugins"], MixedPrecision("16-mixed", "cpu", scaler)]
        return trainer(**settings)

    monkeypatch.setattr(pl, "Trainer", in_float16)
    result = train(config, tmp_path / "16")
    assert result.training["precision"] == "16-mixed" and 1 < scaler.get_scale() < 2.0**18
    assert all(torch.isfinite(weight).all() for weight in weights_of(tmp_path / "16").values())
    assert result.metrics["valid"]["mae"] == pytest.approx(expected, rel=0.05)
