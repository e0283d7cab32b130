"""Reading of ensembles, with checks that the members are complete and belong to one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from graphslice.calibration import Calibration
from graphslice.checkpoint import Checkpoint, read_checkpoint, read_ensemble_calibration
from graphslice.config import RunConfig, read_yaml
from graphslice.errors import InputError
from graphslice.hub import local_path
from graphslice.run_files import (
    BEST,
    CONFIG,
    ENSEMBLE_CALIBRATION,
    LAST,
    MEMBER,
    METRICS,
    START_FILE,
    find_members,
    is_finished,
    member_number,
    read_config,
    resume_command,
)


def find_models(path: str | Path) -> list[Path]:
    """Return the run directories of the members of a finished ensemble, or the path itself for a single model.

    Raises:
        InputError: if a member is missing or not finished, or the directory also holds other models.
    """
    path = Path(local_path(path))
    members, named = find_members(path), (path / CONFIG).is_file()
    if members and not named:
        raise InputError(f"{path} lacks {CONFIG}, which holds the number of ensemble members: copy it again")
    count = RunConfig.from_dict(read_yaml(path / CONFIG)).num_models if named else 1
    if not members and count == 1:
        return [path]
    check_folder(path, count)
    expected = (path / f"{MEMBER}{number}" for number in range(1, count + 1))
    if missing := next((folder for folder in expected if not _is_complete(folder)), None):
        reason = "is not finished" if missing in members else "is missing"
        raise InputError(f"{path} is an ensemble of {count} models, and {missing.name} {reason}: {_resume(path)}")
    if (path / START_FILE).is_file() and not is_finished(path):
        raise InputError(f"{path} is an ensemble that is not finished (it has no {METRICS}): {_resume(path)}")
    return members


def check_folder(path: Path, count: int) -> None:
    """Check that the run directory of an ensemble holds only the models of its ``count`` members.

    Raises :class:`InputError` if it holds a member with a higher number, or a checkpoint outside its members.
    """
    stray = [path / name for name in (BEST, LAST) if (path / name).is_file()]
    members = "no members" if count == 1 else f"{count} members"
    stray += [folder for folder in find_members(path) if count == 1 or member_number(folder) > count]
    if stray:
        raise InputError(f"{stray[0]} does not belong to the run in {path}, which has {members}: move it elsewhere")


def check_one_run(folders: Sequence[Path], configs: Sequence[RunConfig]) -> None:
    """Check that the members of an ensemble were trained by one run: on the same data, with consecutive seeds.

    Raises :class:`InputError` if a member belongs to another run.
    """
    for folder, config in zip(folders[1:], configs[1:], strict=True):
        first, own = folders[0], configs[0]
        same_start = config.init_from == own.init_from
        if _origin(folder, config) != _origin(first, own) or (same_start and config.model != own.model):
            raise InputError(
                f"{folder} does not belong to the same run as {first}: remove it, and {_resume(folder.parent)}"
            )


def read_checkpoints(path: str | Path) -> list[Checkpoint]:
    """Read the checkpoints of the members of an ensemble, or the one checkpoint of a single model.

    Raises:
        InputError: if a checkpoint cannot be read or is of another run than the configuration in its directory, the
            ensemble is incomplete, or its members differ in their targets or in how they read molecules.
    """
    path = Path(local_path(path))
    folders = find_models(path)
    if folders == [path]:
        checkpoint = read_checkpoint(path)
        if is_finished(path) and (path / CONFIG).is_file():
            saved, trained = read_config(path).data, checkpoint.config.data
            if (saved.fingerprint, saved.targets) != (trained.fingerprint, trained.targets):
                config = path / CONFIG
                raise InputError(f"{config} and {BEST} are of different runs: copy the whole run directory again")
        return [checkpoint]
    checkpoints = [read_checkpoint(folder) for folder in folders]
    for folder, checkpoint in zip(folders, checkpoints, strict=True):
        expected, settings = _settings(checkpoints[0]), _settings(checkpoint)
        if different := [name for name in expected if settings[name] != expected[name]]:
            raise InputError(
                f"{folder} and {folders[0]} differ in their targets or in how they read molecules "
                f"({', '.join(different)}): remove the one that does not belong to this run, and {_resume(path)}"
            )
    if is_finished(path):  # not for ensembles that a user assembled from several runs
        check_one_run(folders, [checkpoint.config for checkpoint in checkpoints])
    return checkpoints


def read_calibration(path: str | Path, checkpoints: Sequence[Checkpoint]) -> Calibration | None:
    """Read the calibration of a model or ensemble; None if it has none.

    Args:
        path: as for :func:`read_checkpoints`.
        checkpoints: as returned by :func:`read_checkpoints`.

    Raises:
        InputError: if the file cannot be read, or is missing although the ensemble was calibrated.
    """
    if len(checkpoints) == 1:
        return checkpoints[0].calibration
    folder = Path(local_path(path))
    if not (folder / ENSEMBLE_CALIBRATION).is_file():
        if is_finished(folder):
            raise InputError(
                f"{folder} lacks {ENSEMBLE_CALIBRATION}, the calibration of the ensemble: copy the run directory again"
            )
        return None
    return read_ensemble_calibration(folder, checkpoints[0].tasks)


def _is_complete(folder: Path) -> bool:
    """True if a member is fully trained: it has a best checkpoint and, if its training left files, also its scores."""
    started = any((folder / name).is_file() for name in (START_FILE, LAST))
    return (folder / BEST).is_file() and (is_finished(folder) or not started)


def _resume(path: Path) -> str:
    return f"{resume_command(path)} trains what is missing; or copy the run directory again"


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings that determine how molecules are read and what is predicted."""
    config = checkpoint.config
    return {
        "targets": checkpoint.tasks,
        **asdict(config.graph),
        **config.collate_settings,
        "outputs": config.model.tasks,
    }


def _origin(folder: Path, config: RunConfig) -> tuple:
    """Return the settings that all members of a run share, without paths, since the data may have been moved."""
    paths = {"dataset": "", "valid_file": None, "test_file": None, "root": "", "cache": None}
    data = replace(config.data, **paths, carve=0, fold=None)  # type: ignore[arg-type]
    return data, config.graph, (config.trainer.seed - member_number(folder)) % 2**32
