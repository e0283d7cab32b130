"""Scores of a run: which metric chooses its best epoch, and what the best checkpoint reaches on each split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.calibration import Calibration, temperature_scaled
from graphslice.checkpoint import read_checkpoint
from graphslice.data.datamodule import MoleculeData
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.errors import InputError
from graphslice.evaluation.coverage import COVERAGE_LEVEL, add_coverage, coverage
from graphslice.evaluation.format_scores import describe_coverage, describe_scores
from graphslice.evaluation.metrics import default_metric, score, score_rows
from graphslice.inference.predictions import PredictionInterval
from graphslice.inference.predictor import Predictor
from graphslice.tasks import each_target, num_outputs
from graphslice.training.calibrate import calibrate
from graphslice.training.plots import plot_predicted_vs_true
from graphslice.training.run_directory import TEST_PLOT, write_metrics


def choose_metric(name: str | None, data: MoleculeData) -> str:
    """What chooses the best epoch: the named metric, else that of the kinds of targets.

    The loss, where the validation molecules do not define it: the AUROC of molecules of one class.
    """
    tasks = data.dataset.tasks
    metric = name or default_metric(tasks)
    labels = data.dataset.labels(data.splits["valid"])
    # Any answers do: what is undefined depends on the labels alone. Different ones, for the correlations.
    any_answers = np.random.default_rng(0).uniform(0.1, 0.9, (len(labels), num_outputs(tasks)))
    return metric if np.isfinite(score(metric, data.dataset.name, tasks, labels, any_answers)) else "loss"


def evaluate_split(
    folder: Path,
    dataset: LabelledDataset,
    split: str,
    rows: np.ndarray,
    answers: np.ndarray,
    metric: str,
    console: Console,
    calibration: Calibration,
    interval: PredictionInterval | None,
) -> dict:
    """Score answers for the rows of a split, report them, and draw those of the test split.

    Args:
        folder: of the run.
        source: that the rows are of.
        split: its name.
        rows: ``int64 [R]``.
        answers: ``float32 [R, W]``; of atoms or bonds ``[M, W]``, row by row.
        metric: that is reported first.
        console: where to report.
        calibration: of what answered.
        interval: of :data:`COVERAGE_LEVEL`, where the molecules are none that it was calibrated on.

    Returns:
        As :func:`~graphslice.evaluation.metrics.scores`; of each target also ``coverage_90``, how many labels lie in
        the interval (None where it has no end), and ``width_90`` or ``classes_90``, how wide it is; of classes
        ``temperature`` and the calibration error without it.
    """
    true = dataset.labels(rows)
    found = score_rows(dataset, rows, answers)
    console.print(describe_scores(split, found, first=metric), highlight=False, markup=False, soft_wrap=True)
    for t, task, where in each_target(dataset.tasks):
        if task.classes:
            temperature = calibration.targets[t].temperature
            labels, before = true[:, t : t + 1], temperature_scaled(answers[:, where], 1 / temperature)
            error = score("calibration_error", dataset.name, [task], labels, before)
            found["targets"][task.name] |= {"temperature": temperature, "calibration_error_before": error}
    if interval is not None:
        add_coverage(found, coverage(interval, true, dataset.molecules(rows), dataset.tasks))
        for line in describe_coverage(split, found, COVERAGE_LEVEL):
            console.print(line, highlight=False, soft_wrap=True)
    if split == "test":
        plot_predicted_vs_true(folder / TEST_PLOT, dataset.tasks, true, answers)
    return found


def evaluate_run(
    folder: Path, data: MoleculeData, metric: str, device: torch.device, console: Console, baselines: dict | None = None
) -> dict:
    """Calibrate the best checkpoint, score it on each split, and draw its answers for the test split.

    Args:
        folder: of the run.
        data: what it was trained on.
        metric: that chose its best epoch.
        device: that predicts.
        console: where to report.
        baselines: what the parts of its answer reach alone.

    Returns:
        What ``metrics.json`` holds: ``metric``, which chose the best epoch, each split's scores, and ``baselines``.

    Raises:
        InputError: if the training diverged.
    """
    dataset = data.dataset
    calibration = calibrate(folder, data, device)
    predictor = Predictor(read_checkpoint(folder), device)
    metrics: dict = {"metric": metric}
    for split in ("valid", "test"):
        rows = data.splits.get(split, np.empty(0, np.int64))
        if len(rows) == 0 or np.isnan(dataset.targets[rows]).all():
            continue
        found = predictor.predict_store_rows(data.store, rows, interval=COVERAGE_LEVEL if split == "test" else None)
        if any(found.errors):
            raise InputError("the training diverged: its predictions are no numbers; lower --optimizer.peak_lr")
        given = (folder, dataset, split, rows, found.values, metric, console)
        metrics[split] = evaluate_split(*given, calibration, found.interval)
    if baselines is not None:
        metrics["baselines"] = baselines
    if (origin := predictor.config.origin) is not None:
        metrics["init_from"] = origin
    write_metrics(folder, metrics)
    console.print(f"model: {folder}", highlight=False, markup=False, soft_wrap=True)
    return metrics
