"""Calibration of a model: conformal prediction intervals and sets, temperature scaling and applicability domain.

All are fitted on held-out molecules: a validation set or out-of-fold predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphslice.calibration.applicability_domain import ApplicabilityDomain
from graphslice.calibration.conformal import (
    CONSTANT,
    MIN_CALIBRATION_MOLECULES,
    NonconformityScores,
    fit_interval_scale,
    interval_scale,
)
from graphslice.calibration.temperature import fit_temperature, temperature_scaled
from graphslice.errors import InputError
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, transformed, transformed_back

# Folds of cross-fitting: the scores of a fold use interval weights fitted on the other folds.
_CROSS_FIT_FOLDS = 5
#: Difficulty estimates by name, each ``float [R, T]`` and not negative, that may correlate with the size of the errors.
Difficulty = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class TargetCalibration:
    """Calibration of one target.

    Attributes:
        scores: nonconformity scores of held-out molecules. Regression has one set of scores: absolute error divided by
            the predicted scale, on the scale of the target's transform. Classification has one set
            per class: 1 minus the predicted probability of the class, over the molecules of that class.
        weights: weight of each difficulty estimate in the scale of a regression error.
        temperature: divisor of the logits (temperature scaling); 1 for regression.
    """

    scores: tuple[NonconformityScores, ...]
    weights: dict[str, float]
    temperature: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values and arrays, for :meth:`from_dict`."""
        scores, counts = [each.values for each in self.scores], [each.counts for each in self.scores]
        return {"scores": scores, "counts": counts, "weights": self.weights, "temperature": self.temperature}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetCalibration:
        """Restore the output of :meth:`to_dict`."""
        pairs = zip(values["scores"], values["counts"], strict=True)
        scores = tuple(NonconformityScores(*each) for each in pairs)
        return cls(scores, values["weights"], values["temperature"])


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of all targets, and the applicability domain.

    Attributes:
        targets: calibrations of the T targets.
        domain: applicability domain of the training molecules.
    """

    targets: tuple[TargetCalibration, ...]
    domain: ApplicabilityDomain

    def without_smiles(self) -> Calibration:
        """Return the calibration without the SMILES of training molecules, which a few models carry."""
        return replace(self, domain=replace(self.domain, smiles=()))

    def probabilities(self, predictions: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Apply temperature scaling to predictions ``float32 [R, W]``; regression targets stay unchanged."""
        predictions = np.array(predictions, np.float32)
        for t, task, where in each_target(tasks):
            if task.classes:
                predictions[:, where] = temperature_scaled(predictions[:, where], self.targets[t].temperature)
        return predictions

    def prediction_intervals(
        self, predictions: np.ndarray, difficulty: Difficulty, tasks: Sequence[Task], coverage: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute conformal prediction intervals of the regression targets.

        Args:
            predictions: ``float32 [R, W]``.
            difficulty: difficulty estimates of the same rows.
            tasks: T targets.
            coverage: fraction of molecules whose label is to be inside the interval, between 0 and 1. For atom- and
                bond-level targets: fraction of the atoms or bonds of a molecule, averaged over molecules.

        Returns:
            Lower and upper bounds, each ``float32 [R, T]``: nan for classification; infinite if there were too few
            calibration molecules for this coverage.
        """
        low = np.full((len(predictions), len(tasks)), np.nan)
        high = low.copy()
        for t, task, where in each_target(tasks):
            if task.kind != REGRESSION:
                continue
            target = self.targets[t]
            scale = interval_scale(_target_difficulty(difficulty, t), target.weights, len(predictions))
            half_width = target.scores[0].quantile(coverage) * scale
            center = transformed(predictions[:, where][:, 0].astype(np.float64), task)
            low[:, t] = transformed_back(center - half_width, task)
            high[:, t] = transformed_back(center + half_width, task)
        return low.astype(np.float32), high.astype(np.float32)

    def unbounded_targets(self, tasks: Sequence[Task], coverage: float) -> list[str]:
        """Names of the regression targets with too few calibration molecules for finite intervals at this coverage."""
        pairs = zip(tasks, self.targets, strict=True)
        return [
            task.name for task, target in pairs if not task.classes and np.isinf(target.scores[0].quantile(coverage))
        ]

    def prediction_sets(self, predictions: np.ndarray, tasks: Sequence[Task], coverage: float) -> dict[str, np.ndarray]:
        """Compute conformal prediction sets of the classification targets.

        Coverage is label-conditional (Vovk et al. 2005): for every class, this fraction of its molecules has the true
        class in the set. For atom- and bond-level targets it is the fraction of the atoms or bonds of that class in a
        molecule, averaged over the molecules that have some.

        Args:
            predictions: ``float32 [R, W]`` from :meth:`probabilities`.
            tasks: T targets.
            coverage: between 0 and 1.

        Returns:
            For each classification target, by name, ``bool [R, K]``: the classes in the prediction set of each row.
        """
        sets = {}
        for t, task, where in each_target(tasks):
            if task.classes:
                thresholds = [scores.quantile(coverage) for scores in self.targets[t].scores]
                sets[task.name] = 1 - _class_probabilities(predictions[:, where], task) <= np.array(thresholds)
        return sets

    def to_dict(self) -> dict[str, Any]:
        """Return plain values and arrays, for :meth:`from_dict`."""
        return {"targets": [target.to_dict() for target in self.targets], "domain": dict(vars(self.domain))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tasks: Sequence[Task]) -> Calibration:
        """Restore the output of :meth:`to_dict`; raises an InputError if it is of other targets."""
        targets = tuple(map(TargetCalibration.from_dict, values["targets"]))
        if [len(target.scores) for target in targets] != [max(1, len(task.classes)) for task in tasks]:
            raise InputError("the calibration is for other targets")
        return cls(targets, ApplicabilityDomain(**values["domain"]))


def fit_calibration(
    predictions: np.ndarray,
    difficulty: Difficulty,
    labels: np.ndarray,
    molecules: np.ndarray,
    tasks: Sequence[Task],
    domain: ApplicabilityDomain,
    weights: np.ndarray | None = None,
) -> Calibration:
    """Calibrate a model on held-out molecules.

    Args:
        predictions: ``float32 [R, W]``.
        difficulty: difficulty estimates of the same rows.
        labels: ``float64 [R, T]``, in the units of the dataset, or class indices; nan where missing.
        molecules: ``int64 [R]``, ascending: index of the molecule of each row (molecule, atom or bond).
        tasks: T targets.
        domain: applicability domain of the training molecules.
        weights: ``float64 [R]``, weight of each row in the quantiles of errors; None if all molecules count alike.

    Raises:
        InputError: if predictions and labels differ in their number of rows.
    """
    if len(predictions) != len(labels):
        raise InputError(f"{len(predictions)} predictions do not match {len(labels)} labels")
    targets = []
    for t, task, where in each_target(tasks):
        known = np.isfinite(labels[:, t]) & np.isfinite(predictions[:, where]).all(axis=1)
        known_predictions, y = predictions[known, where].astype(np.float64), labels[known, t]
        known_weights = None if weights is None else weights[known]
        if task.classes:
            targets.append(_calibrate_classes(known_predictions, y.astype(int), molecules[known], task, known_weights))
        else:
            errors = np.abs(transformed(y, task) - transformed(known_predictions[:, 0].astype(np.float64), task))
            known_difficulty = {name: values[known] for name, values in _target_difficulty(difficulty, t).items()}
            targets.append(_calibrate_regression(errors, known_difficulty, molecules[known], known_weights))
    return Calibration(tuple(targets), domain)


def _calibrate_classes(
    predictions: np.ndarray, y: np.ndarray, molecules: np.ndarray, task: Task, weights: np.ndarray | None
) -> TargetCalibration:
    temperature = fit_temperature(predictions, y, molecules)
    class_scores = 1 - _class_probabilities(temperature_scaled(predictions, temperature).astype(np.float32), task)
    classes = range(len(task.classes))
    row_weights = [None if weights is None else weights[y == k] for k in classes]
    scores = tuple(
        NonconformityScores.from_rows(class_scores[y == k, k], molecules[y == k], row_weights[k]) for k in classes
    )
    return TargetCalibration(scores, {CONSTANT: 1.0}, temperature)


def _calibrate_regression(
    errors: np.ndarray, difficulty: Mapping[str, np.ndarray], molecules: np.ndarray, row_weights: np.ndarray | None
) -> TargetCalibration:
    """Cross-fit: the score of a molecule uses weights fitted without it, since its own would be too favourable."""
    finite = np.isfinite(errors)
    row_weights = None if row_weights is None else row_weights[finite]
    errors, molecules = errors[finite], np.unique(molecules[finite], return_inverse=True)[1]
    difficulty = {name: values[finite] for name, values in difficulty.items()}
    folds = [molecules % _CROSS_FIT_FOLDS == fold for fold in range(_CROSS_FIT_FOLDS)]
    if min(len(np.unique(molecules[~held_out])) for held_out in folds) < MIN_CALIBRATION_MOLECULES:
        difficulty = {}  # else scores and intervals could be on different scales
    weights = fit_interval_scale(difficulty, errors, molecules)
    scores = np.zeros(len(errors))
    for held_out in folds:
        fit_difficulty = {name: values[~held_out] for name, values in difficulty.items()}
        fold_weights = fit_interval_scale(fit_difficulty, errors[~held_out], molecules[~held_out])
        scale = interval_scale(
            {name: values[held_out] for name, values in difficulty.items()}, fold_weights, held_out.sum()
        )
        scores[held_out] = errors[held_out] / scale
    return TargetCalibration((NonconformityScores.from_rows(scores, molecules, row_weights),), weights)


def _target_difficulty(difficulty: Difficulty, t: int) -> dict[str, np.ndarray]:
    """Difficulty estimates of one target, by name ``float64 [R]``."""
    return {name: np.asarray(values[:, t], np.float64) for name, values in difficulty.items()}


def _class_probabilities(probabilities: np.ndarray, task: Task) -> np.ndarray:
    """Probability of every class, also of both binary classes: ``float64 [R, K]``."""
    probabilities = probabilities.astype(np.float64)
    return np.concatenate([1 - probabilities, probabilities], axis=1) if task.kind == BINARY else probabilities
