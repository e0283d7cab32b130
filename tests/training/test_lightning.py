from __future__ import annotations

import pytest

from graphslice.errors import InputError
from graphslice.training.callbacks import StopTogether
from graphslice.training.devices import Devices
from graphslice.training.lightning import make_trainer


@pytest.fixture
def trainer_on(tiny_config, tmp_path):
    return lambda *devices: make_trainer(tiny_config(), Devices(*devices), tmp_path, 10, [], fresh=True)


def test_several_devices_exchange_gradients_alone(trainer_on):
    """Neither their constants, nor at every step whether one was told to end."""
    trainer = trainer_on("cpu", 2, 1, "32-true", None)
    assert trainer.world_size == 2 and trainer.strategy._ddp_kwargs == {"broadcast_buffers": False}
    assert any(isinstance(callback, StopTogether) for callback in trainer.callbacks)


def test_one_device_has_nobody_to_ask(trainer_on):
    trainer = trainer_on("cpu", 1, 1, "bf16-mixed", None)
    assert trainer.world_size == 1 and trainer.precision == "bf16-mixed"
    assert not any(isinstance(callback, StopTogether) for callback in trainer.callbacks)


def test_what_the_machine_has_not(trainer_on):
    with pytest.raises(InputError, match="this machine cannot train so"):
        trainer_on("tpu", 1, 1, "32-true", None)
