"""Ensembles: the run folders of their members, checked to be complete and of one run, and read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from graphslice.calibration import Calibration
from graphslice.checkpoint import Checkpoint, calibration_kinds, read_checkpoint, read_part
from graphslice.config import RunConfig, read_yaml
from graphslice.errors import InputError
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
)


def find_models(path: str | Path) -> list[Path]:
    """The run folders of the members of a finished ensemble, or the path itself of a single model.

    Raises:
        InputError: if a member is missing or not finished, or the folder holds other models too.
    """
    path = Path(path)
    members, named = find_members(path), (path / CONFIG).is_file()
    if members and not named:
        raise InputError(f"{path} lacks {CONFIG}, which says how many members the ensemble has: copy it again")
    count = RunConfig.from_dict(read_yaml(path / CONFIG)).num_models if named else 1
    if not members and count == 1:
        return [path]
    check_folder(path, count)
    expected = (path / f"{MEMBER}{number}" for number in range(1, count + 1))
    if missing := next((folder for folder in expected if not _is_complete(folder)), None):
        why = "is not finished" if missing in members else "is missing"
        raise InputError(f"{path} is an ensemble of {count} models, and {missing.name} {why}: {_resume(path)}")
    if (path / START_FILE).is_file() and not is_finished(path):
        raise InputError(f"{path} is an ensemble that is not finished, as it has no {METRICS}: {_resume(path)}")
    return members


def check_folder(path: Path, count: int) -> None:
    """Check that a run folder holds no other models than its members.

    Args:
        path: the run folder.
        count: the number of members.

    Raises:
        InputError: if it holds a member too many, or a checkpoint of its own.
    """
    stray = [path / name for name in (BEST, LAST) if (path / name).is_file()]
    members = "no members" if count == 1 else f"{count} members"
    stray += [folder for folder in find_members(path) if count == 1 or member_number(folder) > count]
    if stray:
        raise InputError(f"{stray[0]} is not of the run in {path}, which has {members}: move it elsewhere")


def check_one_run(folders: Sequence[Path], configs: Sequence[RunConfig]) -> None:
    """Check that the members of an ensemble were trained by one run: on the same data, with consecutive seeds.

    Args:
        folders: of the members.
        configs: theirs.

    Raises:
        InputError: if one is of another run.
    """
    pairs = list(zip(folders, configs, strict=True))
    for (folder, config), (first, own) in itertools.product(pairs[1:], pairs[:1]):
        same_start = config.init_from == own.init_from
        if _origin(folder, config) != _origin(first, own) or (same_start and config.model != own.model):
            raise InputError(f"{folder} is not of the run of {first}: remove it, and {_resume(folder.parent)}")


def read_checkpoints(path: str | Path) -> list[Checkpoint]:
    """The members of an ensemble, or the one checkpoint of :func:`read_checkpoint`.

    Raises:
        InputError: if one cannot be read, the ensemble is not complete, or its members do not predict the same.
    """
    folders = find_models(path)
    if folders == [Path(path)]:
        return [read_checkpoint(path)]
    found = [read_checkpoint(folder) for folder in folders]
    for folder, checkpoint in zip(folders, found, strict=True):
        expected, settings = _settings(found[0]), _settings(checkpoint)
        if different := [name for name in expected if settings[name] != expected[name]]:
            raise InputError(
                f"{folder} predicts something else than {folders[0]}, or reads molecules in another way "
                f"({', '.join(different)}): remove the one that is not of this run, and {_resume(Path(path))}"
            )
    if is_finished(Path(path)):  # not of models that were put together by hand
        check_one_run(folders, [checkpoint.config for checkpoint in found])
    return found


def read_calibration(path: str | Path, checkpoints: Sequence[Checkpoint]) -> Calibration | None:
    """The calibration of the predictions of :func:`read_checkpoints`; None where there is none.

    Raises:
        InputError: if it cannot be read, or the run folder has lost it.
    """
    if len(checkpoints) == 1:
        return checkpoints[0].calibration
    folder = Path(path)
    if not (folder / ENSEMBLE_CALIBRATION).is_file():
        if is_finished(folder) and all(checkpoint.calibration for checkpoint in checkpoints):
            raise InputError(
                f"{folder} lacks {ENSEMBLE_CALIBRATION}, the calibration of the ensemble: copy the run folder again"
            )
        return None
    tasks, kinds = checkpoints[0].tasks, calibration_kinds(checkpoints)
    return read_part(folder / ENSEMBLE_CALIBRATION, tasks, kinds)


def _is_complete(folder: Path) -> bool:
    """Whether a member is trained: training notes its beginning and its scores; a saved model has neither, or both."""
    begun = any((folder / name).is_file() for name in (START_FILE, LAST))
    return (folder / BEST).is_file() and (is_finished(folder) or not begun)


def _resume(path: Path) -> str:
    return f"graphslice train --resume {path} trains what is missing; or copy the run folder again"


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What decides how molecules are read and what is predicted."""
    config = checkpoint.config
    return {
        "targets": checkpoint.tasks,
        **asdict(config.graph),
        **config.collate_settings,
        "outputs": config.model.tasks,
    }


def _origin(folder: Path, config: RunConfig) -> tuple:
    """What the members of one run have in common; their data may have been moved in between."""
    places = {"dataset": "", "valid_file": None, "test_file": None, "root": "", "cache": None}
    data = replace(config.data, **places, carve=0, fold=None)  # type: ignore[arg-type]
    return data, config.graph, (config.trainer.seed - member_number(folder)) % 2**32
