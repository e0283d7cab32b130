"""Task types of the targets (regression, binary and multiclass classification), censored labels and normal scores.

The labels of R molecules and T targets are numbers, ``float64 [R, T]``, nan where a label is unknown or a bound; and
bounds such as ``>1000`` of numbers that an assay could not measure, ``float64 [R, T, 2]``: the lower and the upper
bound, -inf and inf where there is none. Normal scores of ranks map numbers to a normal distribution, and back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from graphslice.config import split_words
from graphslice.errors import InputError, check_choice, check_known

REGRESSION, BINARY, MULTICLASS = TASK_KINDS = ("regression", "binary", "multiclass")
#: Transformations of a regression target before training: none, the natural logarithm.
TRANSFORMS = ("none", "log")
#: The loss with which the network also predicts a standard deviation for every regression target.
GAUSSIAN = "gaussian"
#: Groups of targets, in the order in which they are shown; most models have none.
GROUPS = ("absorption", "distribution", "metabolism", "excretion", "toxicity", "")
#: Which values of a target are better, of numbers or of the probability of the second class; neither, or not known.
DIRECTIONS = ("higher", "lower", "")
# Logarithms of standard deviations, in units of the standardised targets, are clipped to this absolute value.
MAX_LOG_STD = 7.0
# Control characters but tabs and line breaks. Most from 80 to 9f are letters or signs of Windows-1252.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Task:
    """One target; raises :class:`InputError` if a name has a control character, which terminals obey."""

    name: str  # of its column
    kind: str = REGRESSION  # one of TASK_KINDS
    classes: tuple[str, ...] = ()
    """Names; a label is the index of its class; the second of two is the positive one; empty for regression."""
    transform: str = "none"  # one of TRANSFORMS; labels are transformed for training, predictions back
    unit: str = ""  # of a regression target; empty if it is not known
    description: str = ""  # what was measured, and which direction is better; may be empty
    group: str = ""  # one of GROUPS
    better: str = ""  # one of DIRECTIONS
    positive: bool = False  # no label of a regression target is below 0, and no prediction or interval
    reference: tuple[float, ...] = field(default=(), repr=False)
    """Predictions for a reference set of molecules, such as approved drugs, in ascending order; of classes the
    probability of the last one; empty if there is none."""

    def __post_init__(self) -> None:
        for text in (self.name, self.unit, self.description, *self.classes):
            if isinstance(text, str) and _CONTROL.search(text):
                raise InputError(f"the target {self.name!r} has a control character in {text!r}: rename it")

    @property
    def outputs(self) -> int:
        """Number of predicted values: one, or for a multiclass target the probability of each class."""
        return len(self.classes) if self.kind == MULTICLASS else 1

    @property
    def columns(self) -> list[str]:
        """Names of the predicted values."""
        if self.kind == REGRESSION:
            return [self.name]
        return [f"{self.name}_prob_{name}" for name in self.classes[-self.outputs :]]

    @property
    def output_names(self) -> list[str]:
        """Names of the raw network outputs, before :func:`to_predictions`."""
        if self.kind == REGRESSION:
            return [self.name if self.transform == "none" else f"{self.transform} {self.name}"]
        return [f"{self.name}, logit of {name}" for name in self.classes[-self.outputs :]]

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain values, as stored in a checkpoint."""
        return {**asdict(self), "classes": list(self.classes), "reference": list(self.reference)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Task:
        """Create a task from the values of :meth:`to_dict`; raises KeyError, TypeError or ValueError for other
        values."""
        reference = tuple(float(number) for number in values.get("reference", ()))
        task = cls(**{**values, "classes": tuple(values["classes"]), "reference": reference})
        texts = (task.name, task.kind, task.transform, task.unit, task.description, *task.classes)
        if not all(isinstance(text, str) for text in texts) or not isinstance(task.positive, bool):
            raise TypeError("a target has a name that is not a string, or positive is not true or false")
        if not (np.isfinite(reference).all() and (np.diff(reference) >= 0).all()):
            raise ValueError(f"the reference of the target {task.name} is not ascending")
        if task.group not in GROUPS or task.better not in DIRECTIONS:
            raise ValueError(f"the group or direction of the target {task.name}")
        counts = {REGRESSION: (0, 0), BINARY: (2, 2), MULTICLASS: (3, 10**6)}
        least, most = counts[task.kind]
        if not least <= len(task.classes) <= most or task.transform not in TRANSFORMS:
            raise ValueError(f"a {task.kind} target with {len(task.classes)} classes")
        return task


def regression_tasks(names: Iterable[str]) -> list[Task]:
    """Return a regression task for every name."""
    return [Task(name) for name in names]


def num_outputs(tasks: Sequence[Task]) -> int:
    """Return the number of predicted values of all targets."""
    return sum(task.outputs for task in tasks)


def num_network_outputs(tasks: Sequence[Task], loss: str) -> int:
    """Return the number of network outputs: with the loss ``gaussian`` also a log standard deviation of each number."""
    return num_outputs(tasks) + (len(regression_indices(tasks)) if loss == GAUSSIAN else 0)


def regression_indices(tasks: Sequence[Task]) -> list[int]:
    """Return the indices of the regression targets."""
    return [t for t, task in enumerate(tasks) if task.kind == REGRESSION]


def prediction_columns(tasks: Sequence[Task]) -> list[str]:
    """Return the names of the predicted values of all targets."""
    return [name for task in tasks for name in task.columns]


def output_slices(tasks: Sequence[Task]) -> list[slice]:
    """Return the slice of the predicted values that belongs to each target."""
    ends = np.cumsum([0, *(task.outputs for task in tasks)]).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


def each_target(tasks: Sequence[Task]) -> Iterator[tuple[int, Task, slice]]:
    """Yield the index of each target, its task and the slice of its predicted values."""
    for t, (task, columns) in enumerate(zip(tasks, output_slices(tasks), strict=True)):
        yield t, task, columns


def to_training_scale(labels: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Transform labels ``float [R, T]`` to the scale on which the network is trained, ``float64 [R, T]``."""
    labels = np.array(labels, dtype=np.float64)
    for t, task in enumerate(tasks):
        labels[:, t] = transformed(labels[:, t], task)
    return labels


def bounds_to_training_scale(bounds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Transform bounds of labels as :func:`to_training_scale`, ``float64 [R, T, 2]``; a lower bound without a logarithm
    says nothing about numbers that have one, so it becomes -inf."""
    bounds = bounds.copy()
    for t, task in enumerate(tasks):
        column = bounds[:, t]
        if task.transform == "log":
            column[:, 0][column[:, 0] <= 0] = -np.inf
        finite = np.isfinite(column)
        column[finite] = transformed(column[finite], task)
    return bounds


def transformed(values: np.ndarray, task: Task) -> np.ndarray:
    """Transform numbers of a regression target, ``float64`` of any shape; others stay unchanged."""
    if task.transform == "log":
        with np.errstate(divide="ignore"):
            return np.log(values)
    return values


def transformed_back(values: np.ndarray, task: Task) -> np.ndarray:
    """Undo :func:`transformed`, and raise negative numbers of positive targets to 0."""
    if task.transform == "log":
        return np.exp(values)
    return np.maximum(values, 0) if task.positive else values


def to_predictions(outputs: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """Convert network outputs ``float [R, W]``, of which further columns are ignored, to predictions
    ``float32 [R, W]``: values in the user's units, and class probabilities."""
    predictions = np.array(outputs[:, : num_outputs(tasks)], dtype=np.float64)
    with np.errstate(over="ignore"):
        for _, task, columns in each_target(tasks):
            if task.kind == BINARY:
                predictions[:, columns] = 1 / (1 + np.exp(-predictions[:, columns]))
            elif task.kind == MULTICLASS:
                maxima = predictions[:, columns].max(axis=1, keepdims=True, initial=-np.inf)
                powers = np.exp(predictions[:, columns] - maxima)
                predictions[:, columns] = powers / powers.sum(axis=1, keepdims=True)
            else:
                predictions[:, columns] = transformed_back(predictions[:, columns], task)
        return predictions.astype(np.float32)


def to_standard_deviations(outputs: np.ndarray, tasks: Sequence[Task], std: np.ndarray) -> np.ndarray | None:
    """Return the standard deviations ``float32 [R, T]``, 0 for classes, that a network trained with the loss
    ``gaussian`` predicts in its ``outputs [R, W + D]``, of labels standardised by ``std [W + D]``; None if it
    predicts none."""
    width = num_outputs(tasks)
    if outputs.shape[1] == width:
        return None
    deviations = np.zeros((len(outputs), len(tasks)), np.float32)
    slices = output_slices(tasks)
    for d, t in enumerate(regression_indices(tasks)):
        logs = np.clip(np.asarray(outputs[:, width + d], np.float64), -MAX_LOG_STD, MAX_LOG_STD)
        deviations[:, t] = np.exp(logs) * std[slices[t].start]
    return deviations


def most_probable(predictions: np.ndarray, task: Task) -> np.ndarray:
    """Return the index of the most probable class, ``int64 [R]``, from the probabilities of one target ``[R, W]``."""
    if task.kind == BINARY:
        return (predictions[:, 0] >= 0.5).astype(np.int64)
    return np.nan_to_num(predictions, nan=-1.0).argmax(axis=1)


def predicted_classes(predictions: np.ndarray, task: Task) -> list[str | None]:
    """Return the most probable class of each row, None for nan, from the probabilities of one target ``[R, W]``."""
    labels, known = most_probable(predictions, task), np.isfinite(predictions).all(axis=1)
    return [task.classes[label] if is_known else None for label, is_known in zip(labels.tolist(), known, strict=True)]


def describe_class(probabilities: np.ndarray, task: Task) -> str:
    """Return the most probable class, and the probability ``[W]`` of the second of two classes, or of that class."""
    predicted, value = task.classes[most_probable(probabilities[None], task)[0]], probabilities.max()
    digits = 2 if 0.005 <= value < 0.995 else 4  # 0.00 is no probability of a class that may be the true one
    return f"{predicted}, P({task.classes[1] if task.kind == BINARY else predicted}) {value:.{digits}f}"


def parse_per_target(text: str | None, names: Sequence[str], choices: Sequence[str], option: str) -> dict[str, str]:
    """Parse an option ``VALUE``, or ``NAME=VALUE,NAME=VALUE``, to the values by the names of the targets it sets;
    raises :class:`InputError` for a value that is none of the ``choices``, or an unknown target."""
    if not text:
        return {}
    if text in choices:
        return dict.fromkeys(names, text)
    values: dict[str, str] = {}
    for part in split_words(text):
        name, equals, value = (word.strip() for word in part.rpartition("="))
        check_choice(option, value if equals else part, choices)
        check_known("target", name, names, option)
        values[name] = value
    return values


def with_transforms(tasks: Sequence[Task], text: str | None) -> list[Task]:
    """Set the transforms of regression targets as ``data.transform`` says; raises :class:`InputError` for one of a
    single target that is not regression."""
    transforms = parse_per_target(text, [task.name for task in tasks], TRANSFORMS, "data.transform")
    wanted = {task.name: transforms.get(task.name, task.transform) for task in tasks}
    for task in tasks:
        if task.kind != REGRESSION and text not in TRANSFORMS and wanted[task.name] != "none":
            raise InputError(f"data.transform {text}: the target {task.name!r} is {task.kind}, not {REGRESSION}")
    return [replace(task, transform=wanted[task.name]) if task.kind == REGRESSION else task for task in tasks]


_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CELL = re.compile(rf"\s*(<=|>=|=<|=>|<|>|\u2264|\u2265|\u2a7d|\u2a7e)\s*({_NUMBER})\s*", re.ASCII)
_LOWER = frozenset({">", ">=", "=>", "\u2265", "\u2a7e"})
# Bounds are fitted as if they were at most this many standard deviations from the mean of all numbers.
_FARTHEST = 5.0
#: The bounds of a label that is a number or unknown.
UNBOUNDED = (-np.inf, np.inf)


def parse_bound(cell: str) -> tuple[float, float] | None:
    """Parse a cell such as ``>1000``, ``< 0.01``, ``>=50`` or ``≤3`` to lower and upper bound, one of them infinite;
    None for any other cell."""
    match = _CELL.fullmatch(cell.replace("\u2212", "-"))
    if match is None:
        return None
    number = float(match[2])
    return (number, np.inf) if match[1] in _LOWER else (-np.inf, number)


def is_bounded(bounds: np.ndarray) -> np.ndarray:
    """Return the mask of labels with a finite bound: ``bool [...]`` of bounds ``[..., 2]``."""
    return np.isfinite(bounds).any(axis=-1)


def bound_text(bounds: np.ndarray) -> str:
    """Write the bounds of a label, ``float64 [2]``, as ``>5`` or ``>5 and <9``; empty if there are none."""
    return " and ".join(f"{sign}{x:.12g}" for sign, x in zip("><", bounds.tolist(), strict=True) if np.isfinite(x))


def within_bounds(labels: np.ndarray, bounds: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Replace the bounds ``[..., 2]`` among labels ``[...]``, nan there, by the nearest value to each prediction that
    they allow, so that the error of a prediction is 0 if it respects the bound, and otherwise its distance from it."""
    nearest = np.clip(predictions, bounds[..., 0], bounds[..., 1])
    return np.where(np.isnan(labels) & is_bounded(bounds), nearest, labels)


def expected_values(labels: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Replace the bounds ``[R, 2]`` among the labels ``[R]`` of a target by the mean of the labels beyond them: that of
    a normal distribution, fitted to numbers and bounds by maximum likelihood (Tobin 1958, doi:10.2307/1907382).
    Models that cannot be fitted to bounds are nearly as good with these labels as with the true ones, and worse with
    the bounds as labels, or without these molecules (docs/log.md). Without two different numbers, a bound is
    replaced by its own value."""
    from scipy.stats import CensoredData, norm

    bounded = is_bounded(bounds) & np.isnan(labels)
    if not bounded.any():
        return labels
    low, high = bounds[bounded].T
    numbers = labels[~np.isnan(labels)]
    nearest = np.where(np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.where(np.isfinite(low), low, high))
    filled = labels.copy()
    filled[bounded] = nearest
    if len(np.unique(numbers)) < 2:
        return filled
    # In units of the spread of the numbers. Bounds far from all numbers are moved nearer, since a single one, perhaps
    # in another unit, would change the mean of all.
    centre, width = numbers.mean(), numbers.std()
    right, left = ~np.isfinite(high), ~np.isfinite(low)
    scaled = np.concatenate([(numbers - centre) / width, [-_FARTHEST, _FARTHEST]])
    least, most = scaled.min(), scaled.max()
    low = np.where(left, low, ((low - centre) / width).clip(least, most))
    high = np.where(right, high, ((high - centre) / width).clip(least, most))
    data = CensoredData(
        uncensored=(numbers - centre) / width,
        left=high[left],
        right=low[right],
        interval=np.stack([low, high], axis=1)[~left & ~right],
    )
    mean, std = norm.fit(data)
    a, b = (low - mean) / std, (high - mean) / std
    # Mean of a normal distribution between a and b; far from its centre, where the share is 0, the bound itself.
    share = np.where(a > 0, norm.sf(a) - norm.sf(b), norm.cdf(b) - norm.cdf(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = mean + std * (norm.pdf(a) - norm.pdf(b)) / share
    edge = np.where(left, high, np.where(right, low, (low + high) / 2))
    inside = np.where(share > 1e-12, inside.clip(low, high), edge)
    filled[bounded] = np.clip(centre + width * inside, *bounds[bounded].T)
    return filled


# Largest number of knots.
_MOST_KNOTS = 1000


def fit_knots(values: np.ndarray) -> np.ndarray:
    """Fit the map between finite numbers ``float64 [R]`` and the normal scores of their ranks: ``float64 [2, P]``,
    knots of a piecewise linear map, scores and numbers, both ascending."""
    numbers, counts = np.unique(values, return_counts=True)
    quantiles = (counts.cumsum() - counts / 2) / len(values)
    chosen = np.unique(np.linspace(0, len(numbers) - 1, _MOST_KNOTS).round().astype(np.int64))
    scores = np.array([NormalDist().inv_cdf(quantile) for quantile in quantiles[chosen]])
    return np.stack([scores, numbers[chosen]])


def to_scores(numbers: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Map numbers to normal scores; numbers beyond the knots get the score of the nearest one."""
    return interpolate(numbers, knots[::-1])


def interpolate(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Interpolate linearly between ``knots [2, P]``, points and numbers; unlike ``numpy.interp`` it never overflows."""
    points, numbers = knots
    right = np.searchsorted(points, x).clip(1, len(points) - 1) if len(points) > 1 else np.zeros(x.shape, np.int64)
    left = np.maximum(right - 1, 0)
    span = np.where(right > left, points[right] - points[left], 1.0)
    share = ((x - points[left]) / span).clip(0, 1)
    low, high = numbers[left], numbers[right]
    return (low * (1 - share) + high * share).clip(low, high)
