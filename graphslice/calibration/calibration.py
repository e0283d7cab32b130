"""What a model carries of its own doubt, found on molecules that it did not learn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from graphslice.tasks import BINARY, REGRESSION, Task, each_target, to_training_scale

# So many parts, each of which is judged by weights that the others give.
_CROSS_FIT_FOLDS = 5
# Intervals that are read from a file: larger scores times weights would make them infinite, and fitted temperatures lie
# well within these. The probability of a class may exceed 1 by rounding.
_LARGEST, _TEMPERATURES, _ROUNDING = 1e30, (0.1, 10.0), 1e-6
#: By name ``float [R, T]``, none negative: what may tell of the size of the errors of R rows.
Difficulty = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class TargetCalibration:
    """Of one target.

    Attributes:
        scores: of molecules that the model did not learn: of numbers one, of their absolute errors over their scale, in
            logarithms where these are learned; of classes one for each, of what the probability of that class lacked to
            1 where it was the true one.
        weights: with which kinds of difficulty make the scale of a number's error.
        temperature: by which logits are divided; 1 of numbers.
    """

    scores: tuple[NonconformityScores, ...]
    weights: dict[str, float]
    temperature: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values and arrays, such as a checkpoint holds."""
        found = {"scores": [each.values for each in self.scores], "weights": dict(self.weights)}
        if any((each.counts > 1).any() for each in self.scores):  # rows are molecules elsewhere
            found["counts"] = [each.counts for each in self.scores]
        return {**found, "temperature": self.temperature}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], task: Task, kinds: Collection[str] | None = None
    ) -> TargetCalibration:
        """The inverse of :meth:`to_dict`; raises KeyError, TypeError or ValueError for what it does not write.

        Args:
            values: plain values and arrays.
            task: of the target.
            kinds: the kinds of difficulty that the model has; any when not given.
        """
        scores = [np.asarray(each).astype(np.float64, casting="same_kind").reshape(-1) for each in values["scores"]]
        counts = [np.asarray(each, np.int64) for each in values.get("counts", map(np.ones_like, scores))]
        found = tuple(NonconformityScores(*each) for each in zip(scores, counts, strict=True))
        weights = {str(name): float(weight) for name, weight in values["weights"].items()}
        temperature = float(values["temperature"])
        every = np.concatenate(scores)
        least, most = (-_ROUNDING, 1 + _ROUNDING) if task.classes else (0, _LARGEST)
        rising = all((np.diff(each) >= 0).all() for each in scores)
        if not rising or not ((every >= least) & (every <= most)).all():
            raise ValueError("the scores of a target")
        scale = max(1.0, every.max(initial=0))
        if weights[CONSTANT] <= 0 or not all(0 <= each <= _LARGEST / scale for each in weights.values()):
            raise ValueError("the weights of a target")
        unknown = kinds is not None and not weights.keys() <= {*kinds}
        if unknown or not _TEMPERATURES[0] <= temperature <= _TEMPERATURES[1]:
            raise ValueError("the calibration of a target")
        return cls(found, weights, temperature)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Of all targets, and the training molecules.

    Attributes:
        targets: T of them.
        domain: of the training molecules.
    """

    targets: tuple[TargetCalibration, ...]
    domain: ApplicabilityDomain

    def probabilities(self, answers: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """``float32 [R, W]``: answers, the probabilities among them at their temperatures."""
        answers = np.array(answers, np.float32)
        for t, task, where in each_target(tasks):
            if task.classes:
                answers[:, where] = temperature_scaled(answers[:, where], self.targets[t].temperature)
        return answers

    def prediction_intervals(
        self, answers: np.ndarray, difficulty: Difficulty, tasks: Sequence[Task], coverage: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the intervals of the numbers begin and end.

        Args:
            answers: ``float32 [R, W]``.
            difficulty: of the same rows.
            tasks: T targets.
            share: of the molecules whose label is to lie within, between 0 and 1; of atoms or bonds the share of those
                of a molecule, in the mean over molecules.

        Returns:
            Two arrays ``float32 [R, T]``: nan of classes; infinite where too few molecules were at hand for this share.
        """
        low = np.full((len(answers), len(tasks)), np.nan)
        high = low.copy()
        for t, task, where in each_target(tasks):
            if task.kind != REGRESSION:
                continue
            own = self.targets[t]
            scale = interval_scale(_target_difficulty(difficulty, t), own.weights, len(answers))
            half = own.scores[0].quantile(coverage) * scale
            middle = to_training_scale(answers[:, where].astype(np.float64), [task])[:, 0]
            low[:, t], high[:, t] = middle - half, middle + half
            if task.transform == "log":
                low[:, t], high[:, t] = np.exp(low[:, t]), np.exp(high[:, t])
        return low.astype(np.float32), high.astype(np.float32)

    def unbounded_targets(self, tasks: Sequence[Task], coverage: float) -> list[str]:
        """The numbers whose intervals have no end, as too few molecules were at hand for this share."""
        found = zip(tasks, self.targets, strict=True)
        return [task.name for task, own in found if not task.classes and np.isinf(own.scores[0].quantile(coverage))]

    def prediction_sets(self, answers: np.ndarray, tasks: Sequence[Task], coverage: float) -> dict[str, np.ndarray]:
        """Of each target of classes ``bool [R, K]``: which classes each row may have.

        The true class is among them for a share of the molecules of every class (label-conditional: Vovk et al. 2005);
        of atoms or bonds for the share of a class's in a molecule, in the mean over the molecules that have some.

        Args:
            answers: ``float32 [R, W]``, after :meth:`probabilities`.
            tasks: T targets.
            share: between 0 and 1.
        """
        found = {}
        for t, task, where in each_target(tasks):
            if task.classes:
                borders = [scores.quantile(coverage) for scores in self.targets[t].scores]
                found[task.name] = 1 - _class_probabilities(answers[:, where], task) <= np.array(borders)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values and arrays, such as a checkpoint holds."""
        return {"targets": [target.to_dict() for target in self.targets], "domain": self.domain.to_dict()}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], tasks: Sequence[Task], kinds: Collection[str] | None = None
    ) -> Calibration:
        """The inverse of :meth:`to_dict`; raises KeyError, TypeError or ValueError for what it does not write.

        Args:
            values: plain values and arrays.
            tasks: T targets.
            kinds: the kinds of difficulty that the model has; any when not given.
        """
        counts = [max(1, len(task.classes)) for task in tasks]
        if [len(each["scores"]) for each in values["targets"]] != counts:
            raise ValueError("the calibration of other targets")
        pairs = zip(values["targets"], tasks, strict=True)
        targets = tuple(TargetCalibration.from_dict(each, task, kinds) for each, task in pairs)
        return cls(targets, ApplicabilityDomain.from_dict(values["domain"]))


def fit_calibration(
    answers: np.ndarray,
    difficulty: Difficulty,
    labels: np.ndarray,
    molecules: np.ndarray,
    tasks: Sequence[Task],
    domain: ApplicabilityDomain,
) -> Calibration:
    """Calibrate a model on molecules that it did not learn, each of which counts as one.

    Args:
        answers: ``float32 [R, W]``, of the model.
        difficulty: of the same rows.
        labels: ``float64 [R, T]``, in the user's unit and places of classes; nan where unknown.
        molecules: ``int64 [R]``, ascending: which molecule each row is, or of which it is an atom or a bond.
        tasks: T targets.
        domain: of the training molecules.

    Raises:
        InputError: if answers and labels are not of the same rows.
    """
    if len(answers) != len(labels):
        raise InputError(f"{len(answers)} answers do not go with {len(labels)} labels")
    targets = []
    for t, task, where in each_target(tasks):
        known = np.isfinite(labels[:, t]) & np.isfinite(answers[:, where]).all(axis=1)
        own, y = answers[known, where].astype(np.float64), labels[known, t]
        if task.classes:
            targets.append(_calibrate_classification(own, y.astype(int), molecules[known], task))
        else:
            errors = np.abs(to_training_scale(y[:, None], [task]) - to_training_scale(own, [task]))[:, 0]
            difficult = {name: each[known] for name, each in _target_difficulty(difficulty, t).items()}
            targets.append(_calibrate_regression(errors, difficult, molecules[known]))
    return Calibration(tuple(targets), domain)


def _calibrate_classification(
    answers: np.ndarray, y: np.ndarray, molecules: np.ndarray, task: Task
) -> TargetCalibration:
    temperature = fit_temperature(answers, y, molecules)
    lacking = 1 - _class_probabilities(temperature_scaled(answers, temperature).astype(np.float32), task)
    places = range(len(task.classes))
    scores = tuple(NonconformityScores.from_rows(lacking[y == place, place], molecules[y == place]) for place in places)
    return TargetCalibration(scores, {CONSTANT: 1.0}, temperature)


def _calibrate_regression(
    errors: np.ndarray, difficulty: Mapping[str, np.ndarray], molecules: np.ndarray
) -> TargetCalibration:
    """The scores are those by weights that were found without the molecule, which would favour itself."""
    finite = np.isfinite(errors)
    errors, molecules = errors[finite], np.unique(molecules[finite], return_inverse=True)[1]
    difficulty = {name: each[finite] for name, each in difficulty.items()}
    parts = [molecules % _CROSS_FIT_FOLDS == part for part in range(_CROSS_FIT_FOLDS)]
    if min(len(np.unique(molecules[~inside])) for inside in parts) < MIN_CALIBRATION_MOLECULES:
        difficulty = {}  # scores of one scale and answers of another would not go together
    weights = fit_interval_scale(difficulty, errors, molecules)
    scores = np.zeros(len(errors))
    for inside in parts:
        rest = {name: each[~inside] for name, each in difficulty.items()}
        others = fit_interval_scale(rest, errors[~inside], molecules[~inside])
        scale = interval_scale({name: each[inside] for name, each in difficulty.items()}, others, inside.sum())
        scores[inside] = errors[inside] / scale
    return TargetCalibration((NonconformityScores.from_rows(scores, molecules),), weights)


def _target_difficulty(difficulty: Difficulty, t: int) -> dict[str, np.ndarray]:
    """``float64 [R]`` by name, of one target."""
    return {name: np.asarray(each[:, t], np.float64) for name, each in difficulty.items()}


def _class_probabilities(probabilities: np.ndarray, task: Task) -> np.ndarray:
    """``float64 [R, K]``: the probability of every class, of two classes of both."""
    probabilities = probabilities.astype(np.float64)
    return np.concatenate([1 - probabilities, probabilities], axis=1) if task.kind == BINARY else probabilities
