"""The columns that predictions are in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from graphslice.data.arrow import number_array, text_array
from graphslice.tasks import Task, each_target, predicted_classes

if TYPE_CHECKING:
    from graphslice.inference.predictions import Interval, Predictions


def added_columns(
    tasks: Sequence[Task], spread: bool = False, interval: float | None = None, nearest: bool = False
) -> list[str]:
    """Names of the columns that a prediction adds to a table; ``spread``: of several models."""
    found = []
    for task in tasks:
        found += [*_names_of(task), *(_names_of_spread(task) if spread else [])]
        found += [] if interval is None else _names_of_interval(task)
    of_domain = ["in_domain", "similarity"] if interval is not None or nearest else []
    return [*found, *of_domain, *(["nearest"] if nearest else []), "error"]


def _names_of(task: Task) -> list[str]:
    """What a target adds: its prediction, and of classes the probabilities."""
    return [f"{task.name}_pred", *(task.columns if task.classes else [])]


def _names_of_spread(task: Task) -> list[str]:
    """What a target adds of several models: the standard deviation of each of its numbers."""
    return [f"{name}_std" for name in task.columns]


def _names_of_interval(task: Task) -> list[str]:
    """What a target adds of an interval."""
    return [f"{task.name}_set"] if task.classes else [f"{task.name}_low", f"{task.name}_high"]


def columns_of(answers: Predictions) -> dict[str, pa.Array]:
    """The columns of :func:`added_columns` with what they hold."""
    found = {}
    for t, task, where in each_target(answers.tasks):
        predicted, *probabilities = _names_of(task)
        values = answers.values[:, where]
        if task.classes:
            found[predicted] = text_array(predicted_classes(values, task))
        for name, column in zip(probabilities or [predicted], values.T, strict=True):
            found[name] = number_array(column)
        if answers.spread is not None:
            for name, column in zip(_names_of_spread(task), answers.spread[:, where].T, strict=True):
                found[name] = number_array(column)
        found |= _of_interval(answers.interval, task, t, np.isfinite(values).all(axis=1))
    return found | _of_domain(answers) | {"error": text_array(list(answers.errors))}


def _of_interval(interval: Interval | None, task: Task, t: int, answered: np.ndarray) -> dict[str, pa.Array]:
    """The columns of :func:`_names_of_interval`; of classes those that cannot be ruled out, with | between."""
    if interval is None:
        return {}
    if task.classes:
        rows = (
            [name for name, there in zip(task.classes, row, strict=True) if there] for row in interval.sets[task.name]
        )
        # No class, of a molecule that is like none, is not the same as no answer.
        columns = [
            text_array(["|".join(names) if there else None for names, there in zip(rows, answered, strict=True)])
        ]
    else:
        columns = [number_array(interval.low[:, t]), number_array(interval.high[:, t])]
    return dict(zip(_names_of_interval(task), columns, strict=True))


def _of_domain(answers: Predictions) -> dict[str, pa.Array]:
    """How near the training molecules are, where that was asked for; nothing where there is no molecule."""
    if (near := answers.neighbours) is None:
        return {}
    known = np.isfinite(near.similarity)
    found = {
        "in_domain": pa.array(near.in_domain, mask=~known),
        "similarity": number_array(near.similarity),
    }
    return found if near.nearest is None else found | {"nearest": text_array(near.nearest)}
