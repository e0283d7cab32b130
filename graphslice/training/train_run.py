"""Train a model or an ensemble (one process per member), or resume a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from graphslice.config import RunConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
from graphslice.data.loaders import is_dataset_name, load_dataset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import as_predictions, predict_held_out, rows_in_split
from graphslice.evaluation.format_scores import describe_seeds, score_text
from graphslice.evaluation.metrics import COVERAGE_LEVEL, METRICS
from graphslice.inference.predictor import Predictor, load
from graphslice.runs import run_files
from graphslice.runs.ensemble import check_members
from graphslice.stacking.stacking import NETWORK
from graphslice.system.console import QUIET, Report, WorkProgress, divide, remark, result, silent, standard_error
from graphslice.system.files import ENDING, locked
from graphslice.system.machine import cores, visible_gpus
from graphslice.system.processes import in_processes, is_first_process, report_to_parent
from graphslice.training.data_summary import print_data_summary
from graphslice.training.devices import choose_devices, make_fabric, quiet_lightning
from graphslice.training.loop import Interrupted
from graphslice.training.resolve import CompleteConfig, check_options, member_configs, resolve
from graphslice.training.run import RunResult, finished_result, init_run_directory, run
from graphslice.training.stack import calibrate_ensemble, evaluate_split, mixer_note

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch_geometric.data import Data


# Shares of the time that reading the molecules, and that training the members of an ensemble takes.
_READING, _MEMBERS = 0.02, 0.95


def train(
    config: RunConfig,
    out: str | Path,  # an empty folder or, with overwrite, that of a run
    *,
    data: DataFrame | Iterable[Data] | None = None,  # in place of the file config.data.dataset
    overwrite: bool = False,
    command: str | None = None,  # by which the run was started
    console: Console | None = None,
) -> RunResult:
    """Train a model or an ensemble, and write it to a run directory; raises :class:`InputError`, before anything is
    written, if the data or the configuration cannot be used, or another process is using the directory."""
    out, console = Path(out), _console(console)
    with _lock(out):
        # Mistakes in options and columns come first: an existing run would hide them.
        check_options(config)
        with quiet_lightning():
            make_fabric(choose_devices(config.trainer), out, fresh=True, log=False)
        dataset = load_dataset(config.data, data=data)
        if is_first_process():
            check_run_directory(out, config, frame=data is not None, overwrite=overwrite)
        return _train(config, dataset, out, console, command=command)


def _train(
    config: RunConfig, dataset: LabelledDataset, out: Path, console: Console, *, fresh: bool = True, **options: Any
) -> RunResult:
    """Read the molecules, and train or continue a model or an ensemble, with one line of progress."""
    begin, splits = time.perf_counter(), None if fresh else run_files.read_splits(out)
    with WorkProgress("training", console) as progress:
        reading, training = divide(progress.update, _READING, 1 - _READING)
        complete, data = resolve(config, dataset, out, console, chosen=not fresh, splits=splits, report=reading)
        options |= {"fresh": fresh, "console": console, "report": training}
        if complete.members:
            trained = train_ensemble(complete, data, dataset, out, **options)
        else:
            trained = run(complete, data, out, **options)
    if fresh and trained.training:  # of a run that was interrupted the total is not known
        trained.training["total_seconds"] = round(time.perf_counter() - begin, 3)
        run_files.write_json(out / run_files.TRAINING, trained.training)
    return trained


def check_run_directory(folder: Path, config: RunConfig, *, frame: bool = False, overwrite: bool) -> None:
    """Raise :class:`InputError` as :func:`~graphslice.runs.run_files.check_folder`; ``frame``: the data is no file."""
    data = config.data
    dataset = None if frame or is_dataset_name(data.dataset) else data.dataset
    origin = None if config.origin is None else run_files.find_checkpoint(config.origin)
    inputs = data.valid_file, data.test_file, dataset, origin
    run_files.check_folder(folder, inputs, overwrite=overwrite)


def _lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a run directory; in a distributed run, the first process does so for all of them."""
    return locked(folder) if is_first_process() else nullcontext()


def _console(console: Console | None) -> Console:
    return (console or standard_error()) if is_first_process() else QUIET


def _check_unchanged(config: RunConfig, dataset: LabelledDataset, what: object) -> None:
    if dataset.fingerprint() != config.data.fingerprint:
        raise InputError(f"the data of {what} has changed since the run was started: start a new run instead")


def resume(folder: str | Path, *, data: Iterable[Data] | None = None, console: Console | None = None) -> RunResult:
    """Continue a run that was stopped or killed, with the same PyG ``data`` if it was trained on any; the result is
    that of an uninterrupted run, on GPUs up to rounding and to the dropout masks of compiled steps. Raises
    :class:`InputError` if the directory holds no run, another process is using it, or its data has changed."""
    folder, console = Path(folder), _console(console)
    config = run_files.read_config(folder) if (folder / run_files.CONFIG).is_file() else None
    if config is None or config.data.fingerprint is None:
        raise InputError(f"{folder} holds no run to continue: start one without --resume")
    with _lock(folder):
        check_options(config)
        if config.data.dataset == "pyg" and data is None:
            raise InputError(
                f"{folder} was trained on PyG data: continue it with graphslice.training.resume(folder, data=...)"
            )
        dataset = load_dataset(config.data, data=data)
        _check_unchanged(config, dataset, folder)
        return _train(config, dataset, folder, console, fresh=False)


def train_ensemble(
    complete: CompleteConfig,
    data: MoleculeData,
    dataset: LabelledDataset,  # as it was loaded: labels of ``data`` may be in another order
    out: Path,
    *,
    fresh: bool,
    command: str | None = None,
    console: Console,
    report: Report = silent,
) -> RunResult:
    """Train the members of an ensemble or cross-validation, each in its own process and subdirectory, and evaluate the
    ensemble; other arguments, result and errors as of :func:`~graphslice.training.run.run`."""
    config, members = complete.config, complete.members
    if not fresh and all(run_files.is_finished(folder) for folder in (out, *(out / name for name in members))):
        return finished_result(out, data, console)
    if fresh:
        if config.origin is not None:
            console.out(f"each model is fine-tuned from {config.origin}", highlight=False)
        init_run_directory(out, config, data, console, command)
    print_data_summary(console, data)
    if config.data.is_cross_validation:
        remark("cross-validation: each model has another fold as its test set", console)
    elif len(data.splits["valid"]) and "valid" not in (dataset.splits or {}):
        remark("each ensemble member has its own validation set", console)
    try:
        of_members, evaluation = divide(report, _MEMBERS, 1 - _MEMBERS)
        train_members(members, dataset, out, complete.metric, console, of_members)
    except KeyboardInterrupt:
        raise Interrupted from None
    evaluation(0.0, "calibration and evaluation")
    return RunResult(out, evaluate_ensemble(out, data, complete.metric, console), run_files.read_training(out), data)


def train_member(config: RunConfig, folder: Path, dataset: LabelledDataset | None) -> None:
    """Train an ensemble member in its folder, or continue it; a ``dataset`` that is None is loaded."""
    with locked(folder, wait=ENDING):
        dataset = load_dataset(config.data) if dataset is None else dataset
        _check_unchanged(config, dataset, config.data.dataset)
        fresh, console = not (folder / run_files.CONFIG).exists(), QUIET
        splits = None if fresh else run_files.read_splits(folder)
        complete, data = resolve(config, dataset, folder, console, chosen=True, splits=splits)
        run(complete, data, folder, fresh=fresh, console=console, report=report_to_parent)


def train_members(
    members: dict[str, RunConfig], dataset: LabelledDataset, out: Path, metric: str, console: Console, report: Report
) -> None:
    """Train or continue the unfinished members in parallel, one per GPU, or one per core without GPUs; ``metric``
    selects the best epoch of each."""
    shares = dict.fromkeys(members, 0.0)

    def show(name: str, done: float, status: str) -> None:
        shares[name] = done
        report(sum(shares.values()) / len(shares), status and f"{len(members)} models")

    accelerator = next(iter(members.values())).trainer.accelerator
    gpus = visible_gpus(accelerator)
    given = None if dataset.graphs is None else dataset  # PyG data, which cannot be loaded again
    tasks = {
        name: (config, out / name, given) for name, config in members.items() if not run_files.is_finished(out / name)
    }
    jobs = min(len(gpus) or cores(), len(tasks))
    console.print(f"training {len(members)} models, {jobs} at a time", highlight=False)
    report(0.0, f"{len(members)} models")
    for name in members.keys() - tasks.keys():
        show(name, 1.0, "")
    with closing(in_processes(train_member, tasks, jobs, gpus, lambda name, reported: show(name, *reported))) as ended:
        for done, (name, reason) in enumerate(ended, len(members) - len(tasks) + 1):
            if reason is not None:
                raise InputError(f"{out / name}: {reason}")
            show(name, 1.0, "finished")
            values, label = read_metric(out / name, metric), METRICS[metric].label
            scores = ", ".join(f"{split} {label} {score_text(value)}" for split, value in values.items())
            console.print(f"{done} of {len(members)}: {name}: {scores}", highlight=False)


def read_metric(folder: Path, metric: str) -> dict[str, float]:
    """Return a metric of a finished run by split, for the splits where it is defined."""
    metrics = run_files.read_metrics(folder)
    values = {split: metrics[split].get(metric) for split in ("valid", "test") if split in metrics}
    return {split: value for split, value in values.items() if value is not None}


def evaluate_ensemble(out: Path, data: MoleculeData, metric: str, console: Console) -> dict:
    """Calibrate and evaluate the ensemble, predicting each molecule only with members that held it out in that split;
    return the contents of ``metrics.json``."""
    config, dataset = run_files.read_config(out), data.dataset
    folders, metrics = [out / name for name in member_configs(config)], dict[str, Any](metric=metric)
    splits = [run_files.read_splits(folder) or data.splits for folder in folders]  # OGB's split is not saved
    data_config, device = config.data, config.trainer.inference_device  # data.config is that of the first member
    models = [load(folder, device) for folder in folders]
    checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
    check_members(folders, checkpoints)
    calibration = calibrate_ensemble(out, models, splits, "test" if data_config.is_cross_validation else "valid", data)
    for split in ("valid", "test"):
        rows = rows_in_split(splits, split)
        if not dataset.all_labels.known()[rows].any():
            continue
        file = run_files.VALID_PREDICTIONS
        if split == "test":
            file = run_files.OUT_OF_FOLD if data_config.is_cross_validation else run_files.TEST_PREDICTIONS
        if file == run_files.TEST_PREDICTIONS:  # all members held it out
            ensemble = Predictor(checkpoints, device, calibration=calibration)
            predicted = ensemble.predict_store_rows(data.store, rows, interval=COVERAGE_LEVEL)
        else:
            mean, _ = predict_held_out(models, splits, split, data.store, rows)
            predicted = as_predictions(dataset, rows, calibration.probabilities(mean, dataset.tasks))
        metrics[split] = evaluate_split(out, data, split, rows, predicted, metric, console, calibration, file)
        if file == run_files.OUT_OF_FOLD:
            note = "prediction intervals are calibrated on these out-of-fold errors, so their coverage is not measured"
            remark(note, console)
            if (repeats := data_config.folds_and_repeats[1]) > 1:
                remark(f"each molecule is scored on the mean of {repeats} predictions, one of each repeat", console)
            result(f"out-of-fold predictions: {out / run_files.OUT_OF_FOLD}", console)
    weights = [1.0 if one is None else one.weights[0].mean() for model in models for one in model.stackings]
    for note in mixer_note(config.model.mixer, float(np.mean(weights))):
        remark(note, console)
    metrics["members"] = {folder.name: read_metric(folder, metric) for folder in folders}
    folds = data_config.folds_and_repeats[0] if data_config.is_cross_validation else 0
    _describe_members(folders, metrics["members"], metric, folds, console)
    run_files.write_json(out / run_files.TRAINING, _training_totals(folders))
    run_files.write_metrics(out, metrics)
    result(f"model: {out}", console)
    return metrics


def _describe_members(
    folders: Sequence[Path], members: dict[str, dict[str, float]], metric: str, folds: int, console: Console
) -> None:
    member_metrics = [run_files.read_metrics(folder) for folder in folders]
    # A member on whose validation set the metric is undefined used another metric; its baselines are left out.
    baselines = [own.get("baselines", {}) if own["metric"] == metric else {} for own in member_metrics]
    for split in ("valid", "test"):
        scores = [{NETWORK: scores[split]} for scores in members.values() if split in scores]
        if all(split in by_model for by_model in baselines):
            scores = [by_model[split] for by_model in baselines]
        for line in describe_seeds(split, scores, metric, folds):
            result(line, console)


def _training_totals(folders: Sequence[Path]) -> dict:
    summaries = [run_files.read_training(folder) for folder in folders]
    sums = {name: sum(summary[name] for summary in summaries) for name in ("steps", "seconds")}
    molecules = sum(one["molecules_per_second"] * one["seconds"] for one in summaries)
    rate = {"molecules_per_second": round(molecules / max(sums["seconds"], 1e-9), 3)}
    peak = max((summary["peak_memory_bytes"] or 0) for summary in summaries)
    common = {name: summaries[0][name] for name in ("parameters", "device", "devices", "precision", "compiled")}
    return {**sums, **rate, "peak_memory_bytes": peak, **common, "members": len(summaries)}
