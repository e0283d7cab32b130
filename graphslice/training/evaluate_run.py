"""Calibration of the best checkpoint on held-out molecules, and its scores on each split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.calibration import ApplicabilityDomain, Calibration, fit_calibration, temperature_scaled
from graphslice.checkpoint import add_to_checkpoint, read_checkpoint, save_ensemble_calibration
from graphslice.data.datamodule import MoleculeData
from graphslice.data.molecule_keys import molecule_ids
from graphslice.data.splits import Splits, random_subset
from graphslice.errors import InputError
from graphslice.evaluation.coverage import COVERAGE_LEVEL, add_coverage, coverage
from graphslice.evaluation.format_scores import describe_bounds, describe_coverage, describe_scores
from graphslice.evaluation.metrics import score, score_rows
from graphslice.evaluation.out_of_fold import predict_held_out, rows_in_split
from graphslice.evaluation.prediction_tables import as_predictions, write_predictions
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor
from graphslice.run_files import BEST, OUT_OF_FOLD, TEST_PLOT, TEST_PREDICTIONS, write_metrics
from graphslice.tasks import each_target
from graphslice.training.stack import HeldOut, fit_domain

# Maximum number of molecules used for calibration; of more, a random sample is used.
_MAX_CALIBRATION_ROWS = 5_000


def evaluate_split(
    folder: Path,
    data: MoleculeData,
    split: str,
    rows: np.ndarray,
    predicted: Predictions,
    metric: str,
    console: Console,
    calibration: Calibration,
    *,
    file: str | None = None,
    title: str = "",
) -> dict:
    """Score, print and write the predictions of a split, and plot those of the test set.

    ``file`` is the name of the table to write, ``title`` is printed in place of the name of the split. Returns
    :func:`~graphslice.evaluation.metrics.scores`, for each target with the coverage of
    :func:`~graphslice.evaluation.coverage.add_coverage`, and for classes ``temperature`` and
    ``calibration_error_before`` temperature scaling. Raises :class:`InputError` if training diverged.
    """
    dataset, predictions, interval = data.dataset, predicted.values, predicted.interval
    if not np.isfinite(predictions).all():
        raise InputError("the training diverged: its predictions are not finite; lower optimizer.peak_lr")
    true = dataset.labels(rows)
    scores = score_rows(dataset, rows, predictions)
    title = title or split
    bounds = describe_bounds(title.removesuffix(":"), scores)
    for line in (describe_scores(title, scores, first=metric), *bounds):
        console.out(line, highlight=False)
    for t, task, where in each_target(dataset.tasks):
        if task.classes:
            temperature = calibration.targets[t].temperature
            labels, before = true[:, t : t + 1], temperature_scaled(predictions[:, where], 1 / temperature)
            error = score("calibration_error", dataset.name, [task], labels, before)
            scores["targets"][task.name] |= {"temperature": temperature, "calibration_error_before": error}
    if interval is not None:
        add_coverage(scores, coverage(interval, true, dataset.molecules(rows), dataset.tasks))
        for line in describe_coverage(split, scores):
            console.print(line, highlight=False, soft_wrap=True)
    if split == "test":
        from graphslice.evaluation.plots import plot_predicted_vs_true  # imports matplotlib

        plot_predicted_vs_true(folder / TEST_PLOT, dataset.tasks, true, predictions)
    if file is not None:
        write_predictions(folder / file, dataset, rows, predicted, data.store)
    return scores


def evaluate_run(
    folder: Path,
    data: MoleculeData,
    metric: str,
    device: torch.device,
    console: Console,
    baselines: dict | None = None,
    held_out: HeldOut | None = None,
) -> dict:
    """Calibrate the best checkpoint, evaluate it on held-out molecules and the test set, and write ``metrics.json``.

    ``baselines`` are the scores of the network, the base models and the stack by split; ``held_out`` is None if the
    model predicts the validation set. Returns the contents of ``metrics.json``.
    """
    dataset, domain = data.dataset, fit_domain(data, data.splits["train"])
    if held_out is None:
        network = Predictor(replace(read_checkpoint(folder), calibration=None), device)
        rows = np.sort(data.splits["valid"])
        held_out = HeldOut(rows, *network.predict_uncalibrated(data.store, rows, domain))
    calibration = _fit_calibration(data, held_out, domain)
    add_to_checkpoint(folder / BEST, calibration)
    predictor = Predictor(read_checkpoint(folder), device)
    metrics: dict = {"metric": metric}
    valid, predictions = held_out.rows, calibration.probabilities(held_out.predictions, dataset.tasks)
    known = dataset.all_labels.known()
    if known[valid].any():
        arguments = (folder, data, "valid", valid, as_predictions(dataset, valid, predictions), metric, console)
        file, title = (None, "") if len(data.splits["valid"]) else (OUT_OF_FOLD, "held-out folds:")
        metrics["valid"] = evaluate_split(*arguments, calibration, file=file, title=title)
    test = data.splits.get("test", np.empty(0, np.int64))
    if known[test].any():
        predicted = predictor.predict_store_rows(data.store, test, interval=COVERAGE_LEVEL)
        arguments = (folder, data, "test", test, predicted, metric, console)
        metrics["test"] = evaluate_split(*arguments, calibration, file=TEST_PREDICTIONS)
    if baselines is not None:
        metrics["baselines"] = baselines
    if (origin := predictor.config.origin) is not None:
        metrics["init_from"] = origin
    write_metrics(folder, metrics)
    console.out(f"model: {folder}", highlight=False)
    return metrics


def calibrate_ensemble(
    out: Path, models: Sequence[Predictor], splits: Sequence[Splits], split: str, data: MoleculeData
) -> Calibration:
    """Calibrate an ensemble on predictions of held-out molecules, and save the calibration in its run directory.

    If the members have different held-out molecules, as in a cross-validation, the errors are those of single
    members. They are not smaller than those of the ensemble mean that is predicted for new molecules (cross-conformal
    prediction, Vovk 2015, doi:10.1007/s10472-013-9368-4).
    """
    # Training molecules of any member: a test set shared by all is not part of the applicability domain.
    training = np.unique(np.concatenate([member["train"] for member in splits]))
    domain = fit_domain(data, training)
    rows = np.sort(random_subset(rows_in_split(splits, split), _MAX_CALIBRATION_ROWS, data.config.trainer.seed))
    if all(np.array_equal(member[split], splits[0][split]) for member in splits):
        checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
        predictor = Predictor(checkpoints, models[0].device)
        held_out = HeldOut(rows, *predictor.predict_uncalibrated(data.store, rows, domain))
    else:
        out_of_fold = predict_held_out(models, splits, split, data.store, rows)
        held_out = HeldOut(rows, out_of_fold.mean, out_of_fold.difficulty)
    calibration = _fit_calibration(data, held_out, domain)
    save_ensemble_calibration(calibration, out)
    return calibration


def _fit_calibration(data: MoleculeData, held_out: HeldOut, domain: ApplicabilityDomain) -> Calibration:
    """Fit a calibration on a sample of held-out predictions; repeated measurements of a molecule count as one."""
    dataset, rows = data.dataset, held_out.rows
    sample = np.isin(rows, random_subset(rows, _MAX_CALIBRATION_ROWS, data.config.trainer.seed))
    values = np.repeat(sample, dataset.all_labels.counts_of(rows))  # those of the sample
    predictions, rows = held_out.predictions[values], rows[sample]
    difficulty = {name: estimates[values] for name, estimates in held_out.difficulty.items()}
    molecules, weights = dataset.molecules(rows), dataset.weights(rows)
    ids, labels = molecule_ids(data.store, rows)[molecules], dataset.labels(rows)
    weights = None if weights is None else weights[molecules]
    return fit_calibration(predictions, difficulty, labels, ids, dataset.tasks, domain, weights)
