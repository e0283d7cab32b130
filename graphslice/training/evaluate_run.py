"""Evaluation of a run: the metric that selects the best epoch, and the scores of the best checkpoint on each split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.calibration import Calibration, temperature_scaled
from graphslice.checkpoint import read_checkpoint
from graphslice.data.datamodule import MoleculeData
from graphslice.data.dataset import LabelledDataset
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
    """Choose the metric that selects the best epoch.

    Args:
        name: metric set by the user; None for the default of the task types.
        data: molecules of the run.

    Returns:
        The metric, or ``"loss"`` if it is undefined on the validation set, as AUROC with a single class.
    """
    tasks = data.dataset.tasks
    metric = name or default_metric(tasks)
    labels = data.dataset.labels(data.splits["valid"])
    # Whether a metric is defined depends only on the labels; predictions are random, since correlations need variance.
    predictions = np.random.default_rng(0).uniform(0.1, 0.9, (len(labels), num_outputs(tasks)))
    return metric if np.isfinite(score(metric, data.dataset.name, tasks, labels, predictions)) else "loss"


def evaluate_split(
    folder: Path,
    dataset: LabelledDataset,
    split: str,
    rows: np.ndarray,
    predictions: np.ndarray,
    metric: str,
    console: Console,
    calibration: Calibration,
    interval: PredictionInterval | None,
) -> dict:
    """Score and print the predictions of a split, and plot those of the test set.

    Args:
        folder: run directory.
        dataset: labelled dataset.
        split: name of the split.
        rows: ``int64 [R]``, rows of the dataset in the split.
        predictions: ``float32 [R, W]``; for atom- or bond-level targets ``[M, W]``, row by row.
        metric: metric that is reported first.
        console: where to report.
        calibration: calibration of the model.
        interval: prediction intervals at :data:`COVERAGE_LEVEL` percent; None for molecules used for calibration.

    Returns:
        As :func:`~graphslice.evaluation.metrics.scores`. For each target also ``coverage_90``, the fraction of labels
        in the interval or prediction set (None if it is unbounded), and its mean width ``width_90`` or size
        ``classes_90``; for classes ``temperature``, and ``calibration_error_before`` temperature scaling.
    """
    true = dataset.labels(rows)
    scores = score_rows(dataset, rows, predictions)
    console.print(describe_scores(split, scores, first=metric), highlight=False, markup=False, soft_wrap=True)
    for t, task, where in each_target(dataset.tasks):
        if task.classes:
            temperature = calibration.targets[t].temperature
            labels, before = true[:, t : t + 1], temperature_scaled(predictions[:, where], 1 / temperature)
            error = score("calibration_error", dataset.name, [task], labels, before)
            scores["targets"][task.name] |= {"temperature": temperature, "calibration_error_before": error}
    if interval is not None:
        add_coverage(scores, coverage(interval, true, dataset.molecules(rows), dataset.tasks))
        for line in describe_coverage(split, scores, COVERAGE_LEVEL):
            console.print(line, highlight=False, soft_wrap=True)
    if split == "test":
        plot_predicted_vs_true(folder / TEST_PLOT, dataset.tasks, true, predictions)
    return scores


def evaluate_run(
    folder: Path, data: MoleculeData, metric: str, device: torch.device, console: Console, baselines: dict | None = None
) -> dict:
    """Calibrate the best checkpoint, evaluate it on the validation and test set, and write ``metrics.json``.

    Args:
        folder: run directory.
        data: molecules of the run.
        metric: metric that selected the best epoch.
        device: device that predicts.
        console: where to report.
        baselines: scores of the network, the tree ensembles and the weighted ensemble, by split.

    Returns:
        Contents of ``metrics.json``: ``metric``, the scores of each split, ``baselines`` if given, and ``init_from``
        for a fine-tuned model.

    Raises:
        InputError: if training diverged.
    """
    dataset = data.dataset
    calibration = calibrate(folder, data, device)
    predictor = Predictor(read_checkpoint(folder), device)
    metrics: dict = {"metric": metric}
    for split in ("valid", "test"):
        rows = data.splits.get(split, np.empty(0, np.int64))
        if len(rows) == 0 or np.isnan(dataset.targets[rows]).all():
            continue
        predicted = predictor.predict_store_rows(data.store, rows, interval=COVERAGE_LEVEL if split == "test" else None)
        if any(predicted.errors):
            raise InputError("the training diverged: its predictions are not finite; lower --optimizer.peak_lr")
        arguments = (folder, dataset, split, rows, predicted.values, metric, console)
        metrics[split] = evaluate_split(*arguments, calibration, predicted.interval)
    if baselines is not None:
        metrics["baselines"] = baselines
    if (origin := predictor.config.origin) is not None:
        metrics["init_from"] = origin
    write_metrics(folder, metrics)
    console.print(f"model: {folder}", highlight=False, markup=False, soft_wrap=True)
    return metrics
