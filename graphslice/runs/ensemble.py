"""Reading of models and ensembles, with a check that the members of an ensemble belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphslice.calibration import Calibration
from graphslice.errors import InputError
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint, read_ensemble_calibration
from graphslice.runs.run_files import BEST, CONFIG, ENSEMBLE_CALIBRATION, find_members, read_config, resume_command
from graphslice.system.hub import local_path


def find_models(path: str | Path) -> list[Path]:
    """Return the run directories of the members of an ensemble, or the path itself for a single model."""
    path = Path(local_path(path))
    count = read_config(path).num_models if (path / CONFIG).is_file() else 1
    found = [member for member in find_members(path) if (member / BEST).is_file()]
    if count > 1 and len(found) != count:
        raise InputError(
            f"{path} is an ensemble of {count} models, of which {len(found)} are there: {resume_command(path)} trains "
            "what is missing; or copy the run directory again"
        )
    return found or [path]


def read_checkpoints(*paths: str | Path) -> list[Checkpoint]:
    """Read the checkpoints of the members of an ensemble, or the one checkpoint of a single model, or those of several
    as one ensemble; raises :class:`InputError` if one cannot be read, or they are not an ensemble."""
    folders = [folder for path in paths for folder in find_models(path)]
    checkpoints = [read_checkpoint(folder) for folder in folders]
    check_members(folders, checkpoints)
    return checkpoints


def check_members(folders: Sequence[Path], checkpoints: Sequence[Checkpoint]) -> None:
    """Raise :class:`InputError` unless the members of an ensemble have the data, targets and graphs of the first."""
    configs = [checkpoint.config for checkpoint in checkpoints]
    known = [
        (config.data.fingerprint, checkpoint.tasks, config.graph, config.collate_settings)
        for config, checkpoint in zip(configs, checkpoints, strict=True)
    ]
    if other := next((folder for folder, one in zip(folders, known, strict=True) if one != known[0]), None):
        raise InputError(
            f"{other} and {folders[0]} differ in data, targets or settings of graphs: they are not an ensemble"
        )


def read_calibration(path: str | Path, checkpoints: Sequence[Checkpoint]) -> Calibration | None:
    """Read the calibration of a model or of an ensemble, given its checkpoints; None if it has none."""
    if len(checkpoints) == 1:
        return checkpoints[0].calibration
    folder = Path(local_path(path))
    has_file = (folder / ENSEMBLE_CALIBRATION).is_file()
    return read_ensemble_calibration(folder, checkpoints[0].tasks) if has_file else None
