"""The search space: which hyperparameters are searched, and their values.

| option | values | searched |
|---|---|---|
| optimizer.peak_lr | a quarter to four times the default, on a logarithmic scale | always |
| trainer.max_epochs | half, one or two times the default number of epochs | unless the length of the run is set |
| optimizer.weight_decay | 0, 0.01, 0.1 | always |
| model.dropout | 0, 0.1, 0.2 | always |
| trainer.loss | auto (mae), huber, mse | if it is auto, for regression targets |
| optimizer.layer_lr_decay | 0.7, 1 | for a fine-tuned model |
| model.layers | 2, 4, 6 | from scratch |
| model.dim | 64, 128, 256 with model.ffn_dim in proportion | from scratch |
| model.mixer | those of ``--mixers`` | from scratch, if given |

The defaults are the user's configuration. They are always among the values. Base models are no hyperparameter: the
stacking weights, chosen on held-out molecules, decide how much each counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.tasks import REGRESSION, Task

_RATE_FACTOR, _EPOCH_FACTORS = 4.0, (0.5, 2.0)
_CHOICES: dict[str, tuple[float, ...]] = {"optimizer.weight_decay": (0.0, 0.01, 0.1), "model.dropout": (0.0, 0.1, 0.2)}
_FINE_TUNED: dict[str, tuple[float, ...]] = {"optimizer.layer_lr_decay": (0.7, 1.0)}
_FROM_SCRATCH: dict[str, tuple[float, ...]] = {"model.layers": (2, 4, 6), "model.dim": (64, 128, 256)}
_DIM, _MIXER = "model.dim", "model.mixer"


@dataclass(frozen=True)
class LogRange:
    """All numbers between two bounds, on a logarithmic scale."""

    low: float
    high: float


#: Values of each option: a range, or a choice.
Space = dict[str, LogRange | tuple[Any, ...]]


def search_space(config: RunConfig, tasks: Sequence[Task], epochs: int, mixers: Sequence[str] = ()) -> Space:
    """Return the search space around a configuration.

    Args:
        config: the defaults, complete.
        tasks: the targets.
        epochs: default number of epochs.
        mixers: mixers to search, in addition to that of the configuration.

    Raises:
        InputError: if mixers are given for a fine-tuned model.
    """
    if mixers and config.origin is not None:
        raise InputError(
            f"--mixers needs training from scratch, but the model is fine-tuned from {config.init_from}: add "
            "init_from none"
        )
    rate = config.optimizer.max_lr
    choices: dict[str, tuple[Any, ...]] = {}
    trainer = config.trainer
    if trainer.max_epochs is None and trainer.max_steps is None and trainer.max_minutes is None:
        choices["trainer.max_epochs"] = tuple(max(1, round(factor * epochs)) for factor in _EPOCH_FACTORS)
    choices |= _CHOICES | (_FROM_SCRATCH if config.origin is None else _FINE_TUNED)
    if trainer.loss == "auto" and any(task.kind == REGRESSION for task in tasks):
        choices["trainer.loss"] = ("huber", "mse")
    if _DIM in choices:
        choices[_DIM] = tuple(dim for dim in choices[_DIM] if dim % config.model.heads == 0)
    if mixers:
        choices[_MIXER] = tuple(mixers)
    present = config.options()
    space: Space = {"optimizer.peak_lr": LogRange(rate / _RATE_FACTOR, rate * _RATE_FACTOR)}
    return space | {name: tuple(dict.fromkeys([present[name], *values])) for name, values in choices.items()}


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with other values of some options.

    Another ``model.dim`` scales ``model.ffn_dim``, and another ``model.mixer`` has its default settings.
    """
    dim = values.get(_DIM, config.model.dim)
    changes = {**values, "model.ffn_dim": max(1, config.model.ffn_dim * dim // config.model.dim)}
    if values.get(_MIXER, config.model.mixer) != config.model.mixer:
        changes["model.mixer_settings"] = None
    return config.with_options(changes)
