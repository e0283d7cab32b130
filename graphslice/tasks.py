"""What is asked of each target: a number, yes or no, or one of several classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from graphslice.config import split_words
from graphslice.errors import InputError, nearest, shown

REGRESSION, BINARY, MULTICLASS = TASK_KINDS = ("regression", "binary", "multiclass")
#: How the numbers of a target are changed before they are learned.
TRANSFORMS = ("none", "log")
#: The loss with which the network learns of each number also the deviation of its error.
GAUSSIAN = "gaussian"
# Logarithms of standardised deviations are kept so far from 0.
_MAX_LOG_STD = 7.0


@dataclass(frozen=True)
class Task:
    """One target.

    Attributes:
        name: of its column.
        kind: of :data:`TASK_KINDS`.
        classes: names of the classes; a label is the place of its class among them. Of a binary target two, of
            which the second is the positive one.
        transform: of :data:`TRANSFORMS`; the natural logarithm is what the network learns, and is undone.
    """

    name: str
    kind: str = REGRESSION
    classes: tuple[str, ...] = ()
    transform: str = "none"

    @property
    def outputs(self) -> int:
        """How many numbers answer it: one, or the probability of each class of several."""
        return len(self.classes) if self.kind == MULTICLASS else 1

    @property
    def columns(self) -> list[str]:
        """Names of these numbers."""
        if self.kind == REGRESSION:
            return [self.name]
        return [f"{self.name}_prob_{name}" for name in self.classes[-self.outputs :]]

    @property
    def output_names(self) -> list[str]:
        """Names of what the network puts out for it, before it is made an answer."""
        if self.kind == REGRESSION:
            return [self.name if self.transform == "none" else f"{self.transform} {self.name}"]
        return [f"{self.name}, logit of {name}" for name in self.classes[-self.outputs :]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, such as a checkpoint holds."""
        return {**asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Task:
        """The inverse of :meth:`to_dict`; raises KeyError, TypeError or ValueError for what it does not write."""
        task = cls(**{**values, "classes": tuple(values["classes"])})
        texts = (task.name, task.kind, task.transform, *task.classes)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a target has names that are no texts")
        counts = {REGRESSION: (0, 0), BINARY: (2, 2), MULTICLASS: (3, 10**6)}
        least, most = counts[task.kind]
        if not least <= len(task.classes) <= most or task.transform not in TRANSFORMS:
            raise ValueError(f"a target {task.kind} of {len(task.classes)} classes")
        return task


def regression_tasks(names: Iterable[str]) -> list[Task]:
    """Targets that are numbers."""
    return [Task(name) for name in names]


def num_outputs(tasks: Sequence[Task]) -> int:
    """How many numbers answer all of some targets."""
    return sum(task.outputs for task in tasks)


def num_network_outputs(tasks: Sequence[Task], loss: str) -> int:
    """How many numbers the network puts out: answers, and with the loss ``gaussian`` a deviation for each number.

    Args:
        tasks: of the targets.
        loss: of the training.
    """
    return num_outputs(tasks) + (len(regression_indices(tasks)) if loss == GAUSSIAN else 0)


def regression_indices(tasks: Sequence[Task]) -> list[int]:
    """The places of the targets that are numbers."""
    return [t for t, task in enumerate(tasks) if task.kind == REGRESSION]


def prediction_columns(tasks: Sequence[Task]) -> list[str]:
    """Names of the numbers that answer some targets."""
    return [name for task in tasks for name in task.columns]


def output_slices(tasks: Sequence[Task]) -> list[slice]:
    """Where the numbers of each target lie among those of all."""
    ends = np.cumsum([0, *(task.outputs for task in tasks)]).tolist()
    return [slice(begin, end) for begin, end in pairwise(ends)]


def each_target(tasks: Sequence[Task]) -> Iterator[tuple[int, Task, slice]]:
    """The place of each target, what is asked of it, and where its numbers lie among those of all."""
    for t, (task, where) in enumerate(zip(tasks, output_slices(tasks), strict=True)):
        yield t, task, where


def to_training_scale(labels: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """``float64 [R, T]``: labels as the network learns them, logarithms where a target asks for them."""
    labels = np.array(labels, dtype=np.float64)
    for t, task in enumerate(tasks):
        if task.transform == "log":
            labels[:, t] = np.log(labels[:, t])
    return labels


def to_predictions(outputs: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    """``float32 [R, W]``: what the network puts out as answers: numbers in the user's unit, and probabilities.

    Args:
        outputs: ``float [R, W]``, of the numbers or their logarithms, and the logits of classes; deviations may follow.
        tasks: T targets that W numbers answer.
    """
    answers = np.array(outputs[:, : num_outputs(tasks)], dtype=np.float64)
    with np.errstate(over="ignore"):
        for _, task, where in each_target(tasks):
            if task.kind == BINARY:
                answers[:, where] = 1 / (1 + np.exp(-answers[:, where]))
            elif task.kind == MULTICLASS:
                powers = np.exp(answers[:, where] - answers[:, where].max(axis=1, keepdims=True, initial=-np.inf))
                answers[:, where] = powers / powers.sum(axis=1, keepdims=True)
            elif task.transform == "log":
                answers[:, where] = np.exp(answers[:, where])
        return answers.astype(np.float32)


def to_standard_deviations(outputs: np.ndarray, tasks: Sequence[Task], std: np.ndarray) -> np.ndarray | None:
    """``float32 [R, T]``: how far off the network takes its numbers to be; 0 of classes, None where it does not say.

    Args:
        outputs: ``float [R, W + D]``, what the network puts out.
        tasks: T targets that W numbers answer.
        std: ``float [W + D]``, of what it learns: its deviations are those of standardised numbers.
    """
    width = num_outputs(tasks)
    if outputs.shape[1] == width:
        return None
    found = np.zeros((len(outputs), len(tasks)), np.float32)
    slices = output_slices(tasks)
    for d, t in enumerate(regression_indices(tasks)):
        logs = np.clip(np.asarray(outputs[:, width + d], np.float64), -_MAX_LOG_STD, _MAX_LOG_STD)
        found[:, t] = np.exp(logs) * std[slices[t].start]
    return found


def predicted_classes(answers: np.ndarray, task: Task) -> list[str | None]:
    """The most probable class of each row; None where there is no answer.

    Args:
        answers: ``float [R, W]``, of this target alone.
        task: of classes.
    """
    binary = task.kind == BINARY
    places = (answers[:, 0] >= 0.5).astype(int) if binary else np.nan_to_num(answers, nan=-1.0).argmax(axis=1)
    known = np.isfinite(answers).all(axis=1)
    return [task.classes[place] if there else None for place, there in zip(places.tolist(), known, strict=True)]


def parse_per_target(text: str | None, names: Sequence[str], choices: Sequence[str], option: str) -> dict[str, str]:
    """What an option says of each target that it speaks of: ``VALUE`` of all, or ``NAME=VALUE,NAME=VALUE``,
    in quotes where a name has a comma.

    Args:
        text: of the option.
        names: of the targets.
        choices: the values it can have.
        option: its name, for messages.

    Raises:
        InputError: for another value, or a target that is not there.
    """
    if not text:
        return {}
    if text in choices:
        return dict.fromkeys(names, text)
    found: dict[str, str] = {}
    for part in split_words(text):
        name, equals, value = (word.strip() for word in part.rpartition("="))
        if value not in choices:
            raise InputError(
                f"{option} knows no {shown(value)}{nearest(value, choices)}: give {', '.join(choices)}, or "
                f"TARGET={choices[-1]} for some of the targets"
            )
        if not equals or name not in names:
            raise InputError(f"{option} speaks of a target {shown(name)}{nearest(name, names)} that is not predicted")
        found[name] = value
    return found
