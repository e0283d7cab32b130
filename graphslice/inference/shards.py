"""Prediction of tables in shards: folders of Parquet files that several processes fill, and that a repeated call
completes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from graphslice._version import __version__
from graphslice.calibration import Calibration
from graphslice.data.batches import Progress, no_progress
from graphslice.data.tables import Shard, list_shards
from graphslice.errors import InputError, file_errors, pluralize
from graphslice.inference.files import FileReport, predict_file
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import Checkpoint, fingerprint
from graphslice.system.files import atomic_write

#: File of a folder of predictions that says of which model, options and rows they are. Readers of folders of Parquet
#: files leave out names that begin with an underscore.
SETTINGS = "_shards.json"
#: Most rows of a shard: a minute or two of one core, which is what a killed process loses.
SHARD_ROWS = 100_000

# A shard and the file of its predictions.
_Task = tuple[Shard, Path]


def predict_shards(
    predictor: Predictor,
    source: Path,  # a table or a folder of tables
    out: Path,  # a folder of Parquet files; the order of their names is that of the rows
    *,
    engine: str = "local",  # or "ray", for a cluster whose machines can all read and write the files
    workers: int | None = None,  # of featurization, with Ray of prediction; default: one per core
    part: tuple[int, int] = (1, 1),  # (7, 100) predicts the seventh of a hundred parts of the shards
    progress: Progress = no_progress,
    **options: Any,  # smiles_column, interval and nearest as in predict_file
) -> FileReport:
    """Predict the shards of a table that are not yet predicted. Shards are the same files, whatever process predicts
    them. InputError: as in :func:`predict_file`, or ``out`` holds other predictions."""
    predictor.check_calibrated(options.get("interval"), options.get("nearest", False))
    shards = list_shards(source, SHARD_ROWS)
    names = [f"{number:06}.parquet" for number in range(len(shards))]
    _check_settings(out, _settings(predictor, dict(zip(names, shards, strict=True)), options))
    report, missing = FileReport(), []
    chosen = list(zip(shards, names, strict=True))[part[0] - 1 :: part[1]]
    for shard, name in chosen:
        if (file := out / name).exists():
            with file_errors("read", file, ValueError), ParquetFile(file) as predictions:
                errors = predictions.read(["error"]).column("error").to_pylist()
            report.add(errors)
            progress(len(errors))
        else:
            missing.append((shard, file.resolve()))
    if engine == "ray" and missing:
        done = _predict_on_ray(predictor, missing, options, workers, progress)
    else:
        done = (predict_file(predictor, *task, workers=workers, progress=progress, **options) for task in missing)
    for one in done:
        report.extend(one)
    there = f", {len(chosen) - len(missing):,} already there" if len(missing) < len(chosen) else ""
    report.notes.append(f"{pluralize(report.rows, 'row')} in {pluralize(len(chosen), 'file')} of {out}{there}")
    return report


def _settings(predictor: Predictor, shards: dict[str, Shard], options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the predictions of a folder, and which file has those of which rows, as JSON."""
    return {
        "version": __version__,
        "model": fingerprint(predictor.checkpoints, predictor.calibration),
        **options,
        "input files": {
            "sha256": {
                file.name: hashlib.sha256(pa.memory_map(str(file)).read_buffer()).hexdigest()
                for file in dict.fromkeys(shard.file for shard in shards.values())
            },
            "rows": {name: [shard.file.name, shard.begin, shard.end] for name, shard in shards.items()},
        },
    }


def _check_settings(out: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a new folder; InputError if a folder has other ones, or Parquet files without any."""
    path = out / SETTINGS
    with file_errors("read", path, ValueError):
        known = json.loads(path.read_text("utf-8")) if path.exists() else None
    if known is None:
        if any(out.glob("*.parquet")):
            raise InputError(f"{out} holds Parquet files without {SETTINGS}: choose another folder")
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(settings, indent=1), "utf-8")
    elif other := [key for key in settings if known.get(key) != settings[key]]:
        raise InputError(f"{out} holds older predictions ({', '.join(other)} changed): choose another folder")


def _predict_on_ray(
    predictor: Predictor, tasks: list[_Task], options: dict[str, Any], workers: int | None, progress: Progress
) -> Iterator[FileReport]:
    from graphslice.system.ray import map_on_cluster

    shared = predictor.checkpoints, predictor.calibration, predictor.folder, options
    for report in map_on_cluster(tasks, _shard_predictor, shared, workers=workers, on_gpu=True):
        progress(report.rows)
        yield report


def _shard_predictor(
    shared: tuple[list[Checkpoint], Calibration | None, Path | None, dict[str, Any]],
) -> Callable[[_Task], FileReport]:
    checkpoints, calibration, folder, options = shared
    predictor = Predictor(checkpoints, calibration=calibration, folder=folder)
    return lambda task: predict_file(predictor, *task, workers=1, **options)
