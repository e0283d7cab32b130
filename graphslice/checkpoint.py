"""Checkpoints of models. Reading one never runs code from the file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphslice._version import __version__
from graphslice.atomic_write import atomic_write
from graphslice.calibration import CONSTANT, DOMAIN_DISTANCE, ENSEMBLE_STD, NETWORK_STD, PARTS_STD, Calibration
from graphslice.chem.descriptors import descriptor_width
from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.run_files import BEST, CONFIG, ENSEMBLE_CALIBRATION, contains_run, find_checkpoint, find_members
from graphslice.stacking import Stacking
from graphslice.tasks import Task, num_network_outputs, num_outputs
from graphslice.torch_files import read_torch_file

if TYPE_CHECKING:
    from graphslice.nn import GraphTransformer

#: The key of a checkpoint that holds GraphSlice's own data: version, configuration, tasks.
KEY = "graphslice"
# Errors that malformed contents of a checkpoint cause.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
# Keys of the optional parts of a model.
_STACKING, _CALIBRATION = "blend", "calibration"


@dataclass
class Checkpoint:
    """A trained model and the configuration of its run.

    Attributes:
        config: the resolved configuration of the run.
        tasks: the targets.
        weights: the state dict of :class:`~graphslice.nn.GraphTransformer`. Tensors on the CPU are converted to arrays,
            which share their memory.
        extra: other values that the run stored, such as the version that wrote it and the fingerprint of its data.
        stacking: base models and their weights in the prediction, or None.
        calibration: the calibration of prediction intervals and probabilities, or None.
    """

    config: RunConfig
    tasks: list[Task]
    weights: dict[str, np.ndarray]
    extra: dict[str, Any] = field(default_factory=dict)
    stacking: Stacking | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        self.weights = {name: np.asarray(value) for name, value in self.weights.items()}

    @property
    def targets(self) -> list[str]:
        """Names of the predicted columns."""
        return [task.name for task in self.tasks]

    def model(self) -> GraphTransformer:
        """Build the network, in evaluation mode.

        Raises:
            InputError: if the weights do not fit the configuration, or it is one of a later version.
        """
        from graphslice.network import build_network  # reading a checkpoint needs no torch

        try:
            if not self.fits():
                raise RuntimeError
            return build_network(self.config.model, self.weights)
        except InputError as error:
            raise InputError(
                f"cannot build the network of the checkpoint: {error}; it is of a later version, or its mixer is in a "
                "file that GRAPHSLICE_MIXERS does not name"
            ) from None
        except (RuntimeError, TypeError):  # TypeError: a dtype that torch does not have
            raise InputError("the checkpoint's weights do not fit its configuration") from None

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


def header(config: RunConfig, tasks: Sequence[Task], **extra: Any) -> dict[str, Any]:
    """Return the metadata of a checkpoint as plain values, which can be read without running code."""
    values = [task.to_dict() for task in tasks]
    return {"version": __version__, "config": config.to_dict(), "tasks": values, **extra}


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a model to a checkpoint without training state."""
    contents = {
        KEY: header(checkpoint.config, checkpoint.tasks, **checkpoint.extra),
        "state_dict": {f"model.{name}": value for name, value in checkpoint.weights.items()},
    }
    _replace(path, contents | _parts(checkpoint.stacking, checkpoint.calibration))


def add_to_checkpoint(path: Path, part: Stacking | Calibration) -> None:
    """Add base models or a calibration to a checkpoint file; its other contents are unchanged.

    Raises:
        InputError: if the checkpoint cannot be read.
    """
    _replace(path, read_torch_file(path) | _parts(part))


def save_ensemble_calibration(calibration: Calibration, folder: Path) -> None:
    """Write the calibration of an ensemble to its run directory."""
    _replace(folder / ENSEMBLE_CALIBRATION, _parts(calibration))


def _parts(*parts: Stacking | Calibration | None) -> dict[str, Any]:
    """Return the optional parts of a model as the contents of a file."""
    given = [part for part in parts if part is not None]
    return {_STACKING if isinstance(part, Stacking) else _CALIBRATION: part.to_dict() for part in given}


def _replace(path: Path, contents: dict[str, Any]) -> None:
    from graphslice.torch_io import as_tensors, torch_bytes  # reading needs no torch

    with atomic_write(path) as temporary:
        temporary.write_bytes(torch_bytes(as_tensors(contents)))


def write_run_directory(checkpoint: Checkpoint, folder: Path) -> None:
    """Create a run directory for a model that was trained elsewhere.

    Raises:
        InputError: if the directory already holds a run (of one model or an ensemble) or cannot be written.
    """
    if contains_run(folder) or find_members(folder):
        raise InputError(f"{folder} holds a run already: choose another --out")
    with atomic_write(folder / CONFIG) as config_file:  # both files or none
        config_file.write_text(checkpoint.config.to_yaml(), encoding="utf-8")
        save_checkpoint(checkpoint, folder / BEST)


def fine_tuning_preset(preset: dict[str, Any], init_from: str) -> dict[str, Any]:
    """Return the sections of a preset adapted to fine-tuning: :meth:`RunConfig.fine_tuned_from` as plain values.

    Raises :class:`InputError` if ``init_from`` is no run directory, checkpoint or packaged model.
    """
    origin = read_checkpoint(init_from).config
    return RunConfig.from_dict(preset).fine_tuned_from(origin, init_from).to_dict()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint of GraphSlice.

    Only tensors and plain values are read; a file that would run code is rejected.

    Args:
        path: the checkpoint file, its run directory, or the name of a packaged model.

    Raises:
        InputError: if the file is missing, truncated, written by another program, or would run code.
    """
    path = find_checkpoint(path)
    contents = read_torch_file(path)
    if KEY not in contents:
        raise InputError(
            f"{path} is not a GraphSlice checkpoint; 'graphslice import-checkpoint' converts those of Graphormer "
            "and Sliceformer"
        )
    head = contents[KEY]
    try:
        extra = {k: v for k, v in head.items() if k not in ("config", "tasks")}
        state = {k: v for k, v in contents["state_dict"].items() if k.startswith("model.")}
        weights = {k.removeprefix("model."): _full(v) for k, v in state.items()}
        config = RunConfig.from_dict(head["config"])
        tasks = [Task.from_dict(values) for values in head["tasks"]]
        if num_network_outputs(tasks, config.trainer.loss) != config.model.tasks:
            raise KeyError("tasks")
        stacking = Stacking.from_dict(contents[_STACKING]) if _STACKING in contents else None
        if stacking is not None and not stacking.fits(tasks):
            raise KeyError(_STACKING)
        checkpoint = Checkpoint(config, tasks, weights, extra, stacking)
        return replace(checkpoint, calibration=_read_calibration(contents, tasks, calibration_kinds([checkpoint])))
    except InputError as error:
        raise InputError(f"{path} was written by another version of GraphSlice: {error}") from None
    except _MALFORMED:
        raise InputError(f"{path} is not a complete GraphSlice checkpoint") from None


def read_part(path: Path, tasks: Sequence[Task], kinds: Collection[str]) -> Calibration | None:
    """Read the calibration that :func:`save_ensemble_calibration` wrote; ``kinds`` as of :func:`calibration_kinds`.

    Raises :class:`InputError` if the file cannot be read.
    """
    contents = read_torch_file(path)
    try:
        return _read_calibration(contents, tasks, kinds)
    except _MALFORMED:
        raise InputError(f"{path} is not a complete GraphSlice checkpoint") from None


def calibration_kinds(checkpoints: Sequence[Checkpoint]) -> set[str]:
    """Return the uncertainty measures available to a model or ensemble, by which its intervals can be scaled."""
    config, tasks = checkpoints[0].config, checkpoints[0].tasks
    kinds = {
        CONSTANT: True,
        DOMAIN_DISTANCE: True,
        NETWORK_STD: config.model.tasks > num_outputs(tasks),
        PARTS_STD: any(checkpoint.stacking is not None for checkpoint in checkpoints),
        ENSEMBLE_STD: len(checkpoints) > 1,
    }
    return {name for name, known in kinds.items() if known}


def _full(weight: np.ndarray) -> np.ndarray:
    """Convert a weight to float32; packaged models are stored as float16."""
    return weight.astype(np.float32) if weight.dtype == np.float16 else weight


def _read_calibration(contents: dict[str, Any], tasks: Sequence[Task], kinds: Collection[str]) -> Calibration | None:
    """Read the calibration of a file, or None; raises one of :data:`_MALFORMED` if it is invalid."""
    if _CALIBRATION not in contents:
        return None
    return Calibration.from_dict(contents[_CALIBRATION], tasks, kinds)
