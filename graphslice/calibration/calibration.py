"""Calibration of a model: conformal prediction intervals and sets, temperature scaling and applicability domain.

All are fitted on held-out molecules: a validation set or out-of-fold predictions.

Conformal prediction (Vovk et al. 2005; Lei et al. 2018, doi:10.1080/01621459.2017.1307116): nonconformity scores, their
quantiles, and the scale of intervals. Rows are measurements of molecules, or atoms or bonds. The rows of one molecule
are dependent, so molecules are exchangeable and rows are not: every molecule has the same weight, whatever its size and
number of measurements (hierarchical conformal prediction: Lee, Barber and Willett 2023, arXiv:2306.06342). The coverage
guarantee then holds for an atom drawn at random from a new molecule. It is the covered fraction of the atoms of a
molecule, averaged over molecules; it is not the fraction of all atoms pooled, and it is no guarantee for a single
molecule.

Temperature scaling: calibration of class probabilities (Guo et al. 2017, arXiv:1706.04599).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from numbers import Real
from typing import Any

import numpy as np

from graphslice.calibration.domain import ApplicabilityDomain
from graphslice.errors import InputError, check_positive, shown
from graphslice.stacking.stacking import simplex_grid, within_standard_errors
from graphslice.stacking.trees import check_arrays, form
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, transformed, transformed_back

# Folds of cross-fitting: the scores of a fold use interval weights fitted on the other folds.
_CROSS_FIT_FOLDS = 5
#: Difficulty estimates by name, each ``float [R, T]`` and not negative, that may correlate with the size of the errors.
Difficulty = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class TargetCalibration:
    """Calibration of one target."""

    scores: tuple[NonconformityScores, ...]
    """Of held-out molecules. Regression has one set: absolute error divided by the predicted scale, on the scale of the
    target's transform. Classification has one set per class: 1 minus its predicted probability, over the molecules of
    that class."""
    weights: dict[str, float]  # weight of each difficulty estimate in the scale of a regression error
    temperature: float = 1.0  # divisor of the logits (temperature scaling); 1 for regression

    @property
    def molecules(self) -> int:
        """Number of calibration molecules with a label; one whose atoms have several classes counts once for each."""
        return round(sum(float((1 / each.counts).sum()) for each in self.scores))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values and arrays, for :meth:`from_dict`."""
        scores, counts = [each.values for each in self.scores], [each.counts for each in self.scores]
        return {"scores": scores, "counts": counts, "weights": self.weights, "temperature": self.temperature}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetCalibration:
        """Restore the output of :meth:`to_dict`; raises an error for values that are none."""
        pairs = zip(values["scores"], values["counts"], strict=True)
        scores = tuple(NonconformityScores(*each) for each in pairs)
        weights = {name: float(weight) for name, weight in values["weights"].items()}
        check_positive("a temperature", values["temperature"])
        return cls(scores, weights, float(values["temperature"]))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of all targets, and the applicability domain of the training molecules."""

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
        self,
        predictions: np.ndarray,  # float32 [R, W]
        difficulty: Difficulty,  # of the same rows
        tasks: Sequence[Task],  # T targets
        coverage: float,  # fraction of molecules, or mean fraction of the atoms or bonds of one, inside; 0 to 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute lower and upper bounds of conformal prediction intervals, each ``float32 [R, T]``: nan for
        classification; infinite with too few calibration molecules for this coverage."""
        low, high = np.full((2, len(predictions), len(tasks)), np.nan)
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
        infinite = [np.isinf(target.scores[0].quantile(coverage)) for target in self.targets]
        return [task.name for task, one in zip(tasks, infinite, strict=True) if one and not task.classes]

    def prediction_sets(self, predictions: np.ndarray, tasks: Sequence[Task], coverage: float) -> dict[str, np.ndarray]:
        """Compute conformal prediction sets, ``bool [R, K]`` by classification target, from :meth:`probabilities`.
        Coverage is label-conditional (Vovk et al. 2005): for every class, this fraction of its molecules has the true
        class in the set; of atoms and bonds, the fraction of those of that class in a molecule, averaged over molecules
        that have some."""
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
    predictions: np.ndarray,  # float32 [R, W]
    difficulty: Difficulty,  # of the same rows
    labels: np.ndarray,  # float64 [R, T], in the units of the dataset, or class indices; nan where missing
    molecules: np.ndarray,  # int64 [R], ascending: molecule of each row (molecule, atom or bond)
    tasks: Sequence[Task],  # T targets
    domain: ApplicabilityDomain,  # of the training molecules
    weights: np.ndarray | None = None,  # float64 [R], of each row in the quantiles of errors
) -> Calibration:
    """Calibrate a model on held-out molecules."""
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
        scores[held_out] = (errors / interval_scale(difficulty, fold_weights, len(errors)))[held_out]
    return TargetCalibration((NonconformityScores.from_rows(scores, molecules, row_weights),), weights)


def _target_difficulty(difficulty: Difficulty, t: int) -> dict[str, np.ndarray]:
    return {name: np.asarray(values[:, t], np.float64) for name, values in difficulty.items()}


def _class_probabilities(probabilities: np.ndarray, task: Task) -> np.ndarray:
    """Probability of every class, also of both binary classes: ``float64 [R, K]``."""
    probabilities = probabilities.astype(np.float64)
    return np.concatenate([1 - probabilities, probabilities], axis=1) if task.kind == BINARY else probabilities


#: With fewer calibration molecules all intervals have the same width, and probabilities are not scaled.
MIN_CALIBRATION_MOLECULES = 20
# Grid steps of an interval weight from 0 to 1.
_STEPS = 8
#: Difficulty estimates: the same for every molecule; 1 minus the similarity to the nearest training molecule.
CONSTANT, DOMAIN_DISTANCE = "constant", "distance"
#: Standard deviations: predicted by the network; of network and base models (stacking); of the ensemble members.
NETWORK_STD = "deviation of the network"
PARTS_STD, ENSEMBLE_STD = "disagreement of the parts", "disagreement of the models"


def coverage_of_level(level: float) -> float:
    """Convert an interval level in percent to a coverage, 90 to 0.9; raises InputError unless from 50 to below 100."""
    if isinstance(level, bool) or not isinstance(level, Real) or not 50 <= level < 100:
        is_fraction = isinstance(level, float) and 0.5 <= level < 1
        hint = f" (did you mean {100 * level:g}?)" if is_fraction else ""
        raise InputError(
            f"the coverage of prediction intervals must be from 50 to below 100 percent, such as 90, not {shown(level)}"
            f"{hint}"
        )
    return level / 100


def min_calibration_molecules(coverage: float) -> int:
    """Smallest number of calibration molecules with finite intervals at this coverage."""
    return ceil(coverage / (1 - coverage) - 1e-6)


def mean_per_molecule(values: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """Average ``float [..., n]`` over the rows of each of M molecules: ``float64 [..., M]``, in ascending order."""
    if (np.diff(molecules) < 0).any():
        order = np.argsort(molecules, kind="stable")
        values, molecules = values[..., order], molecules[order]
    starts = np.flatnonzero(np.diff(molecules, prepend=-1))
    return np.add.reduceat(values, starts, axis=-1, dtype=np.float64) / np.diff(starts, append=len(molecules))


@dataclass(frozen=True, eq=False)
class NonconformityScores:
    """Nonconformity scores of held-out molecules; raises :class:`InputError` if an array has another shape or dtype."""

    values: np.ndarray = field(metadata=form("n", "float64"))  # ascending
    counts: np.ndarray = field(metadata=form("n", "float64"))
    """Number of values of the same molecule, above 0, divided by the weight of the row, if any."""

    def __post_init__(self) -> None:
        check_arrays(self, lambda: "" if (self.counts > 0).all() else "a count is not above 0")

    @classmethod
    def from_rows(
        cls, values: np.ndarray, molecules: np.ndarray, weights: np.ndarray | None = None
    ) -> NonconformityScores:
        """Collect scores ``float [n]`` and their molecules ``int64 [n]``. With weights of the rows, above 0, quantiles
        are weighted, and the weight of a new molecule is the mean (Tibshirani et al. 2019, arXiv:1904.06019)."""
        _, inverse, counts = np.unique(molecules, return_inverse=True, return_counts=True)
        order, shares = np.argsort(values, kind="stable"), 1 / counts[inverse]
        if weights is not None and len(counts):
            shares = shares * weights * (len(counts) / (shares * weights).sum())
        return cls(np.asarray(values, np.float64)[order], 1 / shares[order])

    def quantile(self, coverage: float) -> float:
        """Compute the conformal quantile: the score that exchangeable new molecules, or an atom or bond drawn at random
        from each, stay below with this coverage; infinite if there are too few molecules for it. If rows are molecules,
        it is the ``ceil((n + 1) coverage)``-th smallest score."""
        below = np.cumsum(1 / self.counts)
        molecules = round(below[-1]) if len(below) else 0
        index = int(np.searchsorted(below, (molecules + 1) * coverage - 1e-6))  # 1e-6: sums of fractions are rounded
        return float(self.values[index]) if index < len(below) else float("inf")


def interval_scale(difficulty: Mapping[str, np.ndarray], weights: Mapping[str, float], rows: int) -> np.ndarray:
    """Relative width of the intervals, ``float64 [R]`` above 0, given the weights from :func:`fit_interval_scale`;
    raises :class:`InputError` for a weight of an estimate that is not given."""
    known = {CONSTANT: np.ones(rows), **difficulty}
    if missing := weights.keys() - known:
        raise InputError(f"the intervals depend on an estimate that the model lacks: {shown(missing.pop())}")
    return sum((weight * known[name] for name, weight in weights.items()), np.zeros(rows))


def fit_interval_scale(
    difficulty: Mapping[str, np.ndarray], errors: np.ndarray, molecules: np.ndarray
) -> dict[str, float]:
    """Fit weights of the difficulty estimates, each ``float [n]`` and not negative, in the scale of an absolute error.
    Errors are modelled by a Laplace distribution whose scale is a weighted sum of the difficulty estimates; the weight
    of :data:`CONSTANT` is above 0. The weights are the mean of all grid points whose likelihood is within one standard
    error of the best, paired over molecules."""
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES:
        return {CONSTANT: 1.0}
    known = {CONSTANT: np.ones(len(errors)), **difficulty}
    means = {name: float(mean_per_molecule(values, molecules).mean()) for name, values in known.items()}
    names = [name for name, mean in means.items() if mean > 0]
    parts = np.stack([known[name] / means[name] for name in names])
    grid = np.array([steps for steps in simplex_grid(_STEPS, len(names)) if steps[0] > 0]) / _STEPS
    losses = np.stack([_laplace_losses(candidate @ parts, errors, molecules) for candidate in grid])
    weights = grid[within_standard_errors(losses)].mean(axis=0)
    return {name: float(weight / means[name]) for name, weight in zip(names, weights, strict=True) if weight > 0}


def _laplace_losses(scale: np.ndarray, errors: np.ndarray, molecules: np.ndarray) -> np.ndarray:
    """Mean negative Laplace log-likelihood of the errors of each molecule, up to a constant: ``[M]``."""
    scale = scale * max(float(mean_per_molecule(errors / scale, molecules).mean()), 1e-12)
    return mean_per_molecule(np.log(scale) + errors / scale, molecules)


_TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(5.0), 65))
# Probabilities are clipped to this distance from 0 and 1, since their logarithm is taken.
_MIN_PROBABILITY = 1e-7


def temperature_scaled(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Divide the logits of probabilities ``float [R, W]`` (W = 1: of the second of two classes) by a temperature above
    0; a value above 1 reduces confidence, 1 changes nothing."""
    if temperature == 1:
        return probabilities
    p = np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    if p.shape[1] == 1:
        return 1 / (1 + ((1 - p) / p) ** (1 / temperature))
    powers = p ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, y: np.ndarray, molecules: np.ndarray) -> float:
    """Fit the temperature that minimises log loss, with the same weight for every molecule.

    For temperatures below 1 labels are smoothed by the number of molecules of each class (Platt 1999), so that a few
    correct predictions do not make the model more confident than their number justifies; above 1 they are not, since
    smoothed labels alone would make it less confident. The result is the geometric mean of all temperatures of a grid
    from 0.2 to 5 whose difference in log loss from temperature 1 is within one standard error of the best, paired over
    molecules; 1 if temperature 1 is within it too, or for fewer than 20 molecules or a single class.
    """
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES or len(np.unique(y)) < 2:
        return 1.0
    p = np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    smoothed = _platt_targets(y, molecules, classes := max(2, p.shape[1]))
    changes = []
    for temperature in (*_TEMPERATURES, 1.0):
        targets = smoothed if temperature < 1 else np.eye(classes)[y]
        change = _log_losses(temperature_scaled(p, temperature), targets) - _log_losses(p, targets)
        changes.append(mean_per_molecule(change, molecules))
    accepted = within_standard_errors(np.stack(changes))
    return 1.0 if accepted[-1] else float(np.exp(np.log(_TEMPERATURES[accepted[:-1]]).mean()))


def _platt_targets(y: np.ndarray, molecules: np.ndarray, classes: int) -> np.ndarray:
    """Smooth labels after Platt (1999): (N + 1) / (N + K) for a class of N molecules, else 1 / (N + K); [R, K]."""
    counts = np.array([len(np.unique(molecules[y == index])) for index in range(classes)])[y, None]
    return np.where(np.arange(classes) == y[:, None], counts + 1, 1) / (counts + classes)


def _log_losses(p: np.ndarray, targets: np.ndarray) -> np.ndarray:
    p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
    return -(targets * np.log(np.maximum(p, 1e-12))).sum(axis=1)
