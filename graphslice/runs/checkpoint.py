"""Trained models, and their files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphslice._version import __version__
from graphslice.calibration import Calibration
from graphslice.chem.descriptors import descriptor_width
from graphslice.config import RunConfig
from graphslice.errors import InputError, shown
from graphslice.runs.checkpoint_file import read_values, to_bytes, write_values
from graphslice.runs.run_files import BEST, CONFIG, ENSEMBLE_CALIBRATION, check_folder, find_checkpoint, write_start
from graphslice.stacking import Stacking
from graphslice.system.files import atomic_write
from graphslice.tasks import Task, num_network_outputs

if TYPE_CHECKING:
    from graphslice.nn import GraphTransformer


@dataclass
class Checkpoint:
    """A trained model and the configuration of its run."""

    config: RunConfig  # the resolved configuration of the run
    tasks: list[Task]  # the targets
    weights: dict[str, np.ndarray]  # state dict of GraphTransformer; CPU tensors become arrays that share their memory
    extra: dict[str, Any] = field(default_factory=dict)
    """Stored by the run: the version that wrote it, the fingerprint of its data, ..."""
    stacking: Stacking | None = None  # base models and their weights in the prediction
    calibration: Calibration | None = None  # of prediction intervals and probabilities

    def __post_init__(self) -> None:
        self.weights = {name: np.asarray(value) for name, value in self.weights.items()}

    @property
    def targets(self) -> list[str]:
        """Names of the predicted columns."""
        return [task.name for task in self.tasks]

    def model(self) -> GraphTransformer:
        """Build the network in evaluation mode; raises InputError if weights do not fit, or the mixer is unknown."""
        from graphslice.nn.mixers import MIXERS
        from graphslice.nn.model import build_network  # reading a checkpoint needs no torch

        if (mixer := self.config.model.mixer) not in MIXERS:
            raise InputError(
                f"the model has the mixer {shown(mixer)}: set GRAPHSLICE_MIXERS to the file that registers it"
            )
        with suppress(RuntimeError, TypeError):  # TypeError: a dtype that torch does not have
            if self.fits():
                return build_network(self.config.model, self.weights)
        raise InputError("the weights of the model do not fit its configuration")

    def fits(self) -> bool:
        """True if the weights that have the sizes of the configuration have these; checked before a model is made."""
        config = self.config.model
        layers = {name.split(".")[1] for name in self.weights if name.startswith("blocks.")}
        sizes = {
            "atoms.in_degree.weight": (config.num_degrees, config.dim),
            "pairs.spatial.weight": (config.num_distances, config.heads),
            "pairs.position.weight": (config.num_path_positions * config.heads**2, 1),
            "blocks.0.ffn.expand.weight": (config.ffn_dim, config.dim),
            "head.output.bias" if config.head == "mlp" else "head.bias": (config.tasks,),
        }
        if config.descriptors:
            sizes["descriptors.project.weight"] = (config.dim, config.descriptors)
        shapes = {name: getattr(self.weights.get(name), "shape", None) for name in sizes}
        described = descriptor_width(self.config.data.descriptors) == config.descriptors
        return described and len(layers) == config.layers and shapes == sizes


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a model to a file."""
    write_values(path, _values(checkpoint))


def fingerprint(checkpoints: Sequence[Checkpoint], calibration: Calibration | None) -> str:
    """Return a hash of a model, or of an ensemble and its calibration: of equal models of this version it is equal."""
    digest = hashlib.sha256(to_bytes(_parts(calibration)))
    for checkpoint in checkpoints:
        digest.update(to_bytes(_values(replace(checkpoint, extra={}))))
    return digest.hexdigest()[:16]


def _values(checkpoint: Checkpoint) -> dict[str, Any]:
    values = {
        "version": __version__,
        "config": checkpoint.config.to_dict(),
        "tasks": [task.to_dict() for task in checkpoint.tasks],
        **checkpoint.extra,
        "network": checkpoint.weights,
    }
    return values | _parts(checkpoint.stacking, checkpoint.calibration)


def add_to_checkpoint(path: Path, part: Stacking | Calibration) -> None:
    """Add base models or a calibration to the file of a model; raises InputError if the file cannot be read."""
    write_values(path, read_values(path, dict) | _parts(part))


def save_ensemble_calibration(calibration: Calibration, folder: Path) -> None:
    """Write the calibration of an ensemble to its run directory."""
    write_values(folder / ENSEMBLE_CALIBRATION, {"version": __version__} | _parts(calibration))


def read_ensemble_calibration(folder: Path, tasks: Sequence[Task]) -> Calibration:
    """Read the output of :func:`save_ensemble_calibration`; raises InputError if the file cannot be read."""
    return read_values(
        folder / ENSEMBLE_CALIBRATION, lambda values: Calibration.from_dict(values["calibration"], tasks)
    )


def _parts(*parts: Stacking | Calibration | None) -> dict[str, Any]:
    """Return the optional parts of a model as the contents of a file."""
    given = [part for part in parts if part is not None]
    return {"stacking" if isinstance(part, Stacking) else "calibration": part.to_dict() for part in given}


def write_run_directory(checkpoint: Checkpoint, folder: Path) -> None:
    """Create a run directory for an imported model; raises InputError if it holds a run or cannot be written."""
    check_folder(folder, overwrite=False)
    with atomic_write(folder / CONFIG) as config_file:  # both files or none
        config_file.write_text(checkpoint.config.to_yaml(), encoding="utf-8")
        save_checkpoint(checkpoint, folder / BEST)
        write_start(folder)


def fine_tuning_preset(values: dict[str, Any], init_from: str, preset: str | None) -> dict[str, Any]:
    """Return the values of the usual preset adapted to fine-tuning: :meth:`RunConfig.fine_tuned_from` as plain values;
    :class:`InputError` if ``init_from`` is no model, or the user names a ``preset`` too."""
    if preset is not None:
        raise InputError("init_from sets the architecture: leave out preset")
    origin = read_checkpoint(init_from).config
    return RunConfig.from_dict(values).fine_tuned_from(origin, init_from).to_dict()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a model, given its file, its run directory or the name of a packaged model; no code of the file is run. An
    :class:`InputError` if the file is missing, truncated or written by another program."""
    return read_values(find_checkpoint(path), _parse)


def _parse(values: dict[str, Any]) -> Checkpoint:
    """Build a model of the contents of its file; they may be malformed in any way."""
    config = RunConfig.from_dict(values.pop("config"))
    tasks = [Task.from_dict(task) for task in values.pop("tasks")]
    if num_network_outputs(tasks, config.trainer.loss) != config.model.tasks:
        raise ValueError("tasks")
    # Packaged models are stored as float16.
    weights = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in values.pop("network").items()}
    stacking, calibration = values.pop("stacking", None), values.pop("calibration", None)
    stacking = None if stacking is None else Stacking.from_dict(stacking, tasks)
    calibration = None if calibration is None else Calibration.from_dict(calibration, tasks)
    return Checkpoint(config, tasks, weights, values, stacking, calibration)
