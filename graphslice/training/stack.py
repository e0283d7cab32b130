"""The stack of a run: base models next to the network, and weights chosen by predictions of held-out molecules.

Held-out molecules are a validation set, or folds of the training set (Wolpert 1992, doi:10.1016/S0893-6080(05)80023-1):
every model predicts the molecules of a fold after being trained without them. The final base models are fitted to all
rows; the final network continues from that of the first fold, on all rows. The best checkpoint is calibrated on
held-out molecules, and scored on each split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from graphslice.calibration import PARTS_STD, Calibration, fit_calibration, temperature_scaled
from graphslice.calibration.domain import DOMAIN_BITS, MAX_TRAINING_MOLECULES, ApplicabilityDomain
from graphslice.config import ModelConfig
from graphslice.data.datamodule import MoleculeData
from graphslice.data.featurize import fingerprint_rows, graph_input_rows, molecule_ids
from graphslice.data.splits import Splits, random_subset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import as_predictions, predict_held_out, rows_in_split, write_predictions
from graphslice.evaluation.format_scores import describe_bounds, describe_coverage, describe_scores, score_text
from graphslice.evaluation.metrics import COVERAGE_LEVEL, METRICS, add_coverage, coverage, score, score_rows
from graphslice.inference.predictions import Predictions
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import add_to_checkpoint, read_checkpoint, save_ensemble_calibration
from graphslice.runs.run_files import BEST, OUT_OF_FOLD, TEST_PREDICTIONS, VALID_PREDICTIONS, write_metrics
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import (
    NAMES,
    NETWORK,
    SMALL_WEIGHT,
    STACK,
    BaseModel,
    combine_predictions,
    fit_base_models,
    fit_weights,
    predict_base_models,
    weighted_std,
)
from graphslice.system.console import Report, divide, remark, result, silent
from graphslice.tasks import Task, each_target

#: Folds of the training set. Only some of them are held out if these have enough rows, since each costs a training.
FOLDS = 5
_ENOUGH_ROWS = 120
# Groups of held-out molecules whose stacked predictions use weights chosen on the other groups.
_CROSS_FIT_GROUPS = 5
# If the network has at least this weight for every target, it predicts alone, which is faster.
_NETWORK_ALONE = 0.9
# Weights that differ by less than this are called nearly equal.
_NEARLY_EQUAL = 0.05
_SQUARED_METRICS = ("rmse", "r2", "pearson")

#: Base models of the T targets, by the name of their kind.
BaseModels = dict[str, list[BaseModel]]


@dataclass(frozen=True)
class HeldOut:
    """Predictions of held-out molecules, from which a model is calibrated."""

    rows: np.ndarray  # int64 [R], rows of the dataset, ascending
    predictions: np.ndarray  # float32 [R, W] or [S, W], of models and weights that were fitted without them
    difficulty: dict[str, np.ndarray]  # difficulty estimates of their predictions by name, float32 [S, T]


def num_held_out(data: MoleculeData) -> int:
    """Return how many of the folds of the training set are held out, 1 to :data:`FOLDS`."""
    return int(np.clip(np.ceil(FOLDS * _ENOUGH_ROWS / max(1, len(data.splits["train"]))), 1, FOLDS))


def _folds_title(data: MoleculeData) -> str:
    count = num_held_out(data)
    return "held-out folds:" if count == FOLDS else f"held-out folds ({count} of {FOLDS}):"


def fit_to_rows(data: MoleculeData, rows: np.ndarray) -> BaseModels:
    """Fit the base models to some rows of the training set; ``rows``: ``int64``."""
    dataset, seed = data.dataset, data.config.trainer.seed
    x = graph_input_rows(data.store, rows)
    labels, weights = data.number_labels(rows), dataset.weights(rows)
    return fit_base_models(x, labels, dataset.tasks, seed, weights)


def predict_rows(models: BaseModels, data: MoleculeData, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the predictions ``float32 [R, W]`` of each base model; ``rows``: ``int64 [R]``."""
    x = graph_input_rows(data.store, rows)
    return {name: predict_base_models(each, x) for name, each in models.items()}


def cross_fit(
    predictions: Sequence[np.ndarray], data: MoleculeData, rows: np.ndarray, metric: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stack held-out predictions of M models ``float32 [R, W]``, with weights chosen without the molecule predicted;
    return them, the weighted standard deviation of the models ``float32 [R, T]``, and the weights chosen on all
    molecules ``float64 [M, T]``."""
    dataset, tasks, molecules = data.dataset, data.dataset.tasks, molecule_ids(data.store, rows)
    labels, bounds, row_weights = dataset.targets[rows], dataset.bounds(rows), dataset.weights(rows)

    def weights_of(chosen: np.ndarray) -> np.ndarray:
        parts, squared = [each[chosen] for each in predictions], metric in _SQUARED_METRICS
        limits, own = (None if each is None else each[chosen] for each in (bounds, row_weights))
        return fit_weights(parts, labels[chosen], tasks, molecules[chosen], squared, limits, own)

    stacked, spread = np.empty_like(predictions[0]), np.zeros((len(labels), len(tasks)), np.float32)
    for group in range(_CROSS_FIT_GROUPS):
        own = molecules % _CROSS_FIT_GROUPS == group
        if own.any():
            weights = weights_of(~own)
            stacked[own] = combine_predictions([each[own] for each in predictions], weights, tasks)
            spread[own] = weighted_std([each[own] for each in predictions], weights, tasks)
    return stacked, spread, weights_of(np.ones(len(labels), bool))


class Stack:
    """Base models of a run, fitted on creation: the final ones, and those for held-out molecules; ``folds`` of the
    training set are held out in turn, empty if the validation set is held out, for which the final models predict."""

    def __init__(
        self, data: MoleculeData, folds: Sequence[np.ndarray], console: Console, report: Report = silent
    ) -> None:
        self.data, self.console = data, console
        self.held_out = list(folds) or [data.splits["valid"]]
        self.train_rows = [np.setdiff1d(data.splits["train"], held) for held in self.held_out]
        rows = data.splits["train"]
        console.print(
            f"fitting random forest, gradient boosting and a kernel machine to {len(rows):,} training molecules",
            highlight=False,
        )
        fits = [rows, *(self.train_rows if folds else [])]
        fitted: list[BaseModels] = []
        for part, each in zip(divide(report, *map(len, fits)), fits, strict=True):
            part(0.0, f"base models {len(fitted) + 1} of {len(fits)}")
            fitted.append(fit_to_rows(data, each))
        report(1.0, f"base models {len(fits)} of {len(fits)}")
        self.models, self.fold_models = fitted[0], fitted[1:] or fitted

    def finish(
        self,
        folder: Path,
        metric: str,
        device: torch.device,
        fold_networks: Sequence[Predictor],  # trained without each fold; none if the validation set is held out
    ) -> tuple[dict[str, dict[str, float]], HeldOut]:
        """Choose the weights, add the stack to the best checkpoint, and report the scores. Return the metric by model
        of each split, ``valid`` on held-out molecules, and the held-out predictions."""
        data, dataset = self.data, self.data.dataset
        # In a resumed run the checkpoint may already have a stack and a calibration.
        network = Predictor(replace(read_checkpoint(folder), stacking=None, calibration=None), device)
        parts, held_out, weights = self._predict_held_out(list(fold_networks) or [network], metric)
        if (weights[0] >= _NETWORK_ALONE).all():
            weights = np.zeros_like(weights)
            weights[0] = 1
            # The network alone has no disagreement of parts by which intervals could be scaled.
            known = {name: values for name, values in held_out.difficulty.items() if name != PARTS_STD}
            held_out = replace(held_out, predictions=parts[NETWORK], difficulty=known)
        else:
            add_to_checkpoint(folder / BEST, Stacking(self.models, weights))
        predictions = {"valid": (held_out.rows, parts | {STACK: held_out.predictions})}
        test = data.splits.get("test", np.empty(0, np.int64))
        if len(test) and not np.isnan(dataset.targets[test]).all():
            by_model = {NETWORK: network.predict_store(data.store, test), **predict_rows(self.models, data, test)}
            by_model[STACK] = combine_predictions(list(by_model.values()), weights, dataset.tasks)
            predictions["test"] = test, by_model
        scores = {
            split: {
                name: score(metric, dataset.name, dataset.tasks, dataset.targets[rows], values)
                for name, values in by_model.items()
            }
            for split, (rows, by_model) in predictions.items()
        }
        result(_describe_weights(weights, list(parts), dataset.tasks), self.console)
        for note in mixer_note(data.config.model.mixer, weights[0].mean()):
            remark(note, self.console)
        split = "test" if "test" in predictions else "valid"
        values = ", ".join(f"{NAMES[name]} {score_text(value)}" for name, value in scores[split].items())
        result(f"{'test' if split == 'test' else 'held-out'} {METRICS[metric].label}: {values}", self.console)
        return scores, held_out

    def _predict_held_out(
        self, networks: Sequence[Predictor], metric: str
    ) -> tuple[dict[str, np.ndarray], HeldOut, np.ndarray]:
        """Return the held-out predictions of each model ``float32 [R, W]``, those of the stack, and the weights."""
        data = self.data
        parts: list[dict[str, np.ndarray]] = []
        estimates: list[dict[str, np.ndarray]] = []
        for held, train, network, models in zip(
            self.held_out, self.train_rows, networks, self.fold_models, strict=True
        ):
            values, difficulty = network.predict_uncalibrated(data.store, held, fit_domain(data, train))
            parts.append({NETWORK: values} | predict_rows(models, data, held))
            estimates.append(difficulty)
        all_rows = np.concatenate(self.held_out)
        order = np.argsort(all_rows, kind="stable")
        rows = all_rows[order]
        by_model = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
        difficulty = {name: np.concatenate([each[name] for each in estimates])[order] for name in estimates[0]}
        stacked, spread, weights = cross_fit(list(by_model.values()), data, rows, metric)
        return by_model, HeldOut(rows, stacked, difficulty | {PARTS_STD: spread}), weights


def _describe_weights(weights: np.ndarray, names: Sequence[str], tasks: Sequence[Task]) -> str:
    """Describe the weights ``float64 [M, T]`` of M models for T targets, by their mean over targets."""
    if not weights[1:].any():
        return "stack: 100% network (other models add little and are not used)"
    shares = ", ".join(
        f"{100 * share:.0f}% {NAMES[name]}"
        for name, share in zip(names, weights.mean(axis=1), strict=True)
        if share > 0
    )
    mean = f", mean over {len(tasks):,} targets" if len(tasks) > 1 else ""
    chosen = "weights chosen on held-out molecules"
    if np.ptp(weights) < _NEARLY_EQUAL:
        chosen = "nearly equal weights: on the held-out molecules no model is clearly better"
    return f"stack: {shares} ({chosen}{mean})"


def mixer_note(mixer: str, weight: float) -> list[str]:
    """Say that scores show little of a mixer that the user chose, if its network has a small weight in the stack."""
    if weight >= SMALL_WEIGHT or mixer == ModelConfig.preset("small").mixer:
        return []
    other = f"trainer.baselines off, or graphslice compare, shows those of {mixer}"
    return [f"the scores are mostly those of the base models: {other}"]


def fit_domain(data: MoleculeData, rows: np.ndarray) -> ApplicabilityDomain:
    """Return the applicability domain of training molecules, or of a sample of them; ``rows``: ``int64 [R]``."""
    seed = data.config.trainer.seed
    max_training_atoms = int(data.store.sizes[rows].max(initial=0))
    rows = np.sort(random_subset(rows, MAX_TRAINING_MOLECULES, seed))
    return ApplicabilityDomain.from_fingerprints(
        fingerprint_rows(data.store, rows, DOMAIN_BITS), rows, seed, max_training_atoms
    )


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
    file: str,
    title: str = "",  # in place of the name of the split
) -> dict:
    """Score, print and write (to ``file``) the predictions of a split; raises :class:`InputError` if training diverged.
    Returns the scores with coverage and temperature."""
    dataset, predictions, interval = data.dataset, predicted.values, predicted.interval
    if not np.isfinite(predictions).all():
        raise InputError("the training diverged: its predictions are not finite; lower optimizer.peak_lr")
    true = dataset.all_labels[rows]
    scores = score_rows(dataset, rows, predictions)
    title = title or split
    bounds = describe_bounds(title.removesuffix(":"), scores)
    for line in (describe_scores(title, scores, first=metric), *bounds):
        result(line, console)
    for t, task, where in each_target(dataset.tasks):
        if task.classes:
            temperature = calibration.targets[t].temperature
            labels, before = true[:, t : t + 1], temperature_scaled(predictions[:, where], 1 / temperature)
            error = score("calibration_error", dataset.name, [task], labels, before)
            scores["targets"][task.name] |= {"temperature": temperature, "calibration_error_before": error}
    if interval is not None:
        covered = coverage(interval, true, dataset.all_labels.molecules(rows), dataset.tasks)
        add_coverage(scores, covered, calibration)
        for line in describe_coverage(split, scores):
            result(line, console)
    write_predictions(folder / file, dataset, rows, predicted, data.store)
    return scores


def evaluate_run(
    folder: Path,
    data: MoleculeData,
    metric: str,
    device: torch.device,
    console: Console,
    baselines: dict | None = None,  # scores of the network, the base models and the stack by split
    held_out: HeldOut | None = None,  # None if the model predicts the validation set
) -> dict:
    """Calibrate the best checkpoint, evaluate it on held-out molecules and the test set, and write and return
    ``metrics.json``."""
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
        file, title = (VALID_PREDICTIONS, "") if len(data.splits["valid"]) else (OUT_OF_FOLD, _folds_title(data))
        metrics["valid"] = evaluate_split(*arguments, calibration, file, title)
    test = data.splits.get("test", np.empty(0, np.int64))
    if known[test].any():
        predicted = predictor.predict_store_rows(data.store, test, interval=COVERAGE_LEVEL)
        arguments = (folder, data, "test", test, predicted, metric, console)
        metrics["test"] = evaluate_split(*arguments, calibration, TEST_PREDICTIONS)
    if baselines is not None:
        metrics["baselines"] = baselines
    if (origin := predictor.config.origin) is not None:
        metrics["init_from"] = origin
    write_metrics(folder, metrics)
    result(f"model: {folder}", console)
    return metrics


def calibrate_ensemble(
    out: Path, models: Sequence[Predictor], splits: Sequence[Splits], split: str, data: MoleculeData
) -> Calibration:
    """Calibrate an ensemble on held-out predictions, and save it. If its members held out different molecules, the
    errors are those of single members (cross-conformal prediction, Vovk 2015, doi:10.1007/s10472-013-9368-4)."""
    # Training molecules of any member: a test set shared by all is not part of the applicability domain.
    training = np.unique(np.concatenate([member["train"] for member in splits]))
    domain = fit_domain(data, training)
    rows = np.sort(random_subset(rows_in_split(splits, split), _MAX_CALIBRATION_ROWS, data.config.trainer.seed))
    if all(np.array_equal(member[split], splits[0][split]) for member in splits):
        checkpoints = [checkpoint for model in models for checkpoint in model.checkpoints]
        predictor = Predictor(checkpoints, models[0].device)
        held_out = HeldOut(rows, *predictor.predict_uncalibrated(data.store, rows, domain))
    else:
        held_out = HeldOut(rows, *predict_held_out(models, splits, split, data.store, rows))
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
    molecules, weights = dataset.all_labels.molecules(rows), dataset.weights(rows)
    ids, labels = molecule_ids(data.store, rows)[molecules], dataset.all_labels[rows]
    weights = None if weights is None else weights[molecules]
    return fit_calibration(predictions, difficulty, labels, ids, dataset.tasks, domain, weights)
