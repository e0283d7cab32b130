"""Checkpoints: written, and read without running code."""

from __future__ import annotations

import io
import itertools
import warnings
import zipfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphslice._version import __version__
from graphslice.atomic_write import atomic_write
from graphslice.calibration import CONSTANT, DOMAIN_DISTANCE, ENSEMBLE_STD, NETWORK_STD, PARTS_STD, Calibration
from graphslice.chem.descriptors import descriptor_width
from graphslice.compat import migrate_weight_name
from graphslice.config import RunConfig
from graphslice.errors import InputError
from graphslice.nn.mixers import check_mixer
from graphslice.nn.model import GraphTransformer
from graphslice.run_files import BEST, CONFIG, ENSEMBLE_CALIBRATION, contains_run, find_checkpoint, find_members
from graphslice.tasks import Task, num_network_outputs, num_outputs, regression_tasks
from graphslice.trees import Stacking

#: The key of a checkpoint that holds what is GraphSlice's own.
KEY = "graphslice"
# No checkpoint holds so many values beside the elements of its tensors.
_MOST_VALUES = 2_000_000
# What comes of values that are not those of a checkpoint.
_NOT_WHOLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
# The keys of what a model may have beside its network.
_STACKING, _CALIBRATION = "blend", "calibration"


@dataclass
class Checkpoint:
    """A model and how it was made.

    Attributes:
        config: the resolved configuration of the run.
        tasks: what is asked of each of the targets.
        weights: the state dict of :class:`~graphslice.nn.GraphTransformer`.
        extra: anything else the run noted: the version that wrote it, a fingerprint of its data.
        blend: trees that answer beside the network, or None.
        calibration: what its answers are worth, or None.
    """

    config: RunConfig
    tasks: list[Task]
    weights: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    stacking: Stacking | None = None
    calibration: Calibration | None = None

    @property
    def targets(self) -> list[str]:
        """The names of the predicted columns."""
        return [task.name for task in self.tasks]

    def model(self) -> GraphTransformer:
        """The model, in evaluation mode.

        Raises:
            InputError: if the weights do not fit the configuration.
        """
        try:
            if not self._fits():
                raise RuntimeError
            model = GraphTransformer(self.config.model)
            model.load_state_dict(self.weights)
        except (RuntimeError, NotImplementedError):  # also of tensors that hold no numbers to copy
            raise InputError("the checkpoint's weights do not fit its configuration") from None
        return model.eval()

    def _fits(self) -> bool:
        """Whether the weights have the sizes of the configuration: asked before a model of these gets its memory."""
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
    """What GraphSlice stores beside the weights: plain values only, so that reading runs no code."""
    values = [task.to_dict() for task in tasks]
    return {"version": __version__, "config": config.to_dict(), "tasks": values, **extra}


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint that holds a model and no training state."""
    contents = {
        KEY: header(checkpoint.config, checkpoint.tasks, **checkpoint.extra),
        "state_dict": {f"model.{name}": value for name, value in checkpoint.weights.items()},
    }
    _replace(path, contents | _parts(checkpoint.stacking, checkpoint.calibration))


def add_to_checkpoint(path: Path, part: Stacking | Calibration) -> None:
    """Put trees or a calibration beside the network of a checkpoint, which keeps all else that it has.

    Raises:
        InputError: if it cannot be read.
    """
    stacking, calibration = (part, None) if isinstance(part, Stacking) else (None, part)
    _replace(path, load_weights(path) | _parts(stacking, calibration))


def save_ensemble_calibration(calibration: Calibration, folder: Path) -> None:
    """Write what the models of a run folder have together."""
    _replace(folder / ENSEMBLE_CALIBRATION, _parts(None, calibration))


def _parts(stacking: Stacking | None, calibration: Calibration | None) -> dict[str, Any]:
    """What a file holds of a model beside its network."""
    parts = {_STACKING: stacking, _CALIBRATION: calibration}
    return {name: _as_tensors(part.to_dict()) for name, part in parts.items() if part is not None}


def _replace(path: Path, contents: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_bytes(contents))


def as_bytes(contents: dict[str, Any]) -> memoryview:
    """What :func:`torch.save` writes, which itself says of a full disk only that something has failed."""
    file = io.BytesIO()
    torch.save(contents, file)
    return file.getbuffer()


def _as_tensors(values: Any) -> Any:
    """Nested values with tensors for their arrays: what is read without running code."""
    if isinstance(values, dict):
        return {name: _as_tensors(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_as_tensors(value) for value in values]
    return torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else values


def _as_arrays(values: Any) -> Any:
    """The inverse of :func:`_as_tensors`."""
    if isinstance(values, dict):
        return {name: _as_arrays(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_as_arrays(value) for value in values]
    return values.detach().numpy() if isinstance(values, Tensor) else values


def write_run_directory(checkpoint: Checkpoint, folder: Path) -> None:
    """Make a run folder of a model that was trained elsewhere.

    Raises:
        InputError: if the folder holds a run, of one model or several, or cannot be written.
    """
    if contains_run(folder) or find_members(folder):
        raise InputError(f"{folder} holds a run already: choose another --out")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write the run folder {folder}: it is a file")
    with atomic_write(folder / CONFIG) as beside:  # both or none
        beside.write_text(checkpoint.config.to_yaml(), encoding="utf-8")
        save_checkpoint(checkpoint, folder / BEST)


def fine_tuning_preset(preset: dict[str, Any], init_from: str) -> dict[str, Any]:
    """The sections of a preset for a run that starts from another: :meth:`RunConfig.fine_tuned_from`, as plain values.

    Raises:
        InputError: if ``init_from`` is no run, checkpoint or model that comes with the package.
    """
    origin = read_checkpoint(init_from).config
    return RunConfig.from_dict(preset).fine_tuned_from(origin, init_from).to_dict()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint of GraphSlice, given its file or its run folder.

    Only tensors and plain values are read: a file that asks for code to be run is refused.

    Raises:
        InputError: if it is missing, truncated, of another program, or asks for code.
    """
    path = find_checkpoint(path)
    contents = load_weights(path)
    if KEY not in contents:
        raise InputError(
            f"{path} is not a GraphSlice checkpoint; one of Graphormer or Sliceformer is taken in by "
            "'graphslice import-checkpoint'"
        )
    head = contents[KEY]
    try:
        extra = {k: v for k, v in head.items() if k not in ("config", "targets", "tasks")}
        state = {k: v for k, v in contents["state_dict"].items() if k.startswith("model.")}
        weights = {migrate_weight_name(k.removeprefix("model.")): _full(v) for k, v in state.items()}
        config, tasks = RunConfig.from_dict(head["config"]), _read_tasks(head)
        check_mixer(config.model.mixer, config.model.mixer_settings)
        if num_network_outputs(tasks, config.trainer.loss) != config.model.tasks:
            raise KeyError("tasks")
        stacking = Stacking.from_dict(_as_arrays(contents[_STACKING])) if _STACKING in contents else None
        if stacking is not None and not stacking.fits(tasks):
            raise KeyError(_STACKING)
        found = Checkpoint(config, tasks, weights, extra, stacking)
        return replace(found, calibration=_read_calibration(contents, tasks, calibration_kinds([found])))
    except InputError as error:
        raise InputError(f"{path} was written by another version of GraphSlice: {error}") from None
    except _NOT_WHOLE:
        raise InputError(f"{path} is not a whole GraphSlice checkpoint") from None


def read_part(path: Path, tasks: Sequence[Task], kinds: Collection[str]) -> Calibration | None:
    """The calibration that a file of :func:`save_ensemble_calibration` holds.

    Args:
        path: of the file.
        tasks: of the ensemble.
        kinds: of :func:`calibration_kinds`.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return _read_calibration(load_weights(path), tasks, kinds)
    except InputError:
        raise
    except _NOT_WHOLE:
        raise InputError(f"{path} is not a whole GraphSlice checkpoint") from None


def calibration_kinds(checkpoints: Sequence[Checkpoint]) -> set[str]:
    """The kinds of difficulty that a model, or several as an ensemble, have: intervals can be scaled by these alone."""
    config, tasks = checkpoints[0].config, checkpoints[0].tasks
    kinds = {
        CONSTANT: True,
        DOMAIN_DISTANCE: True,
        NETWORK_STD: config.model.tasks > num_outputs(tasks),
        PARTS_STD: any(checkpoint.stacking is not None for checkpoint in checkpoints),
        ENSEMBLE_STD: len(checkpoints) > 1,
    }
    return {name for name, known in kinds.items() if known}


def _full(weight: Tensor) -> Tensor:
    """A weight in full precision: models that come with the package are kept in half of it."""
    return weight.float() if weight.dtype == torch.float16 and weight.layout == torch.strided else weight


def _read_calibration(contents: dict[str, Any], tasks: Sequence[Task], kinds: Collection[str]) -> Calibration | None:
    """Raises one of :data:`_NOT_WHOLE` for what is none."""
    if _CALIBRATION not in contents:
        return None
    return Calibration.from_dict(_as_arrays(contents[_CALIBRATION]), tasks, kinds)


def _read_tasks(head: dict[str, Any]) -> list[Task]:
    """What is asked of each target; an earlier checkpoint names targets that are numbers."""
    if "tasks" not in head:
        return regression_tasks(head["targets"])
    return [Task.from_dict(values) for values in head["tasks"]]


class _Excessive(ValueError):
    """A file would take far more memory than it has bytes."""


def load_weights(path: Path) -> dict[str, Any]:
    """What a file of ``torch.save`` holds, if that is tensors and plain values alone.

    Raises:
        InputError: if it cannot be read, or asks for code to be run.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch would have its own users do
            check_archive(path)
            contents = torch.load(path, map_location="cpu", weights_only=True)
            _check_sizes(contents, {})
    except Exception as error:  # a damaged file fails in as many ways as there are bytes
        text = str(error) if path.open("rb").read(1) in (b"P", b"\x80") else ""  # neither archive nor pickle
        if isinstance(error, _Excessive):
            why = f"it would take far more memory than it has bytes ({error})"
        elif "Unsupported" in text or "unsupported" in text or "WeightsUnpickler" in text:
            why = "it holds more than weights and plain values, and running its code is not safe"
        else:
            why = "it is truncated, damaged or no checkpoint at all"
        raise InputError(f"cannot read {path}: {why}") from None
    if not isinstance(contents, dict):
        raise InputError(f"cannot read {path}: it holds no checkpoint")
    return contents


def check_archive(path: Path) -> None:
    """Raise ValueError for an archive whose parts take more memory than they have bytes: PyTorch compresses none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise _Excessive("a compressed archive")


def _check_sizes(value: Any, known: dict[int, int]) -> int:
    """The number of values in nested ones, those that several share counted each time.

    Args:
        value: nested values.
        known: the numbers of the parts seen so far, by identity.

    Raises:
        ValueError: if they are too many, endless, or a tensor has more elements than its memory holds.
    """
    if isinstance(value, Tensor):
        if value.layout == torch.strided and value.numel() * value.itemsize > value.untyped_storage().nbytes():
            raise _Excessive("a tensor of repeated elements")
        return 1
    if isinstance(value, dict):
        parts: Iterable[Any] = itertools.chain(value.keys(), value.values())
    elif isinstance(value, list | tuple | set):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, type) else ()
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES  # while its parts are counted: one that holds itself is endless
        known[id(value)] = 1 + sum(_check_sizes(part, known) for part in parts)
    if known[id(value)] >= _MOST_VALUES:
        raise _Excessive("too many values")
    return known[id(value)]
