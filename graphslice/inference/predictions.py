"""Predictions: answers for molecules, and why some have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from graphslice.chem.atom_bond_order import AtomBondOrder
from graphslice.data.arrow import bool_array, list_array, number_array, text_array
from graphslice.data.atom_bond_labels import pointers, ragged_indices
from graphslice.errors import InputError
from graphslice.tasks import Task, each_target, predicted_classes, prediction_columns

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass
class PredictionInterval:
    """What the labels of R molecules are expected to be, T targets; or those of the R atoms or bonds of some.

    Attributes:
        level: in percent, the share of molecules whose label is expected here; of atoms or bonds the share of those of
            a molecule, in the mean over molecules (see :mod:`graphslice.calibration.conformal`).
        low: ``float32 [R, T]``, the smallest number; nan of classes, and where there is no answer.
        high: ``float32 [R, T]``, the largest. Both are infinite where the model was calibrated on too few molecules.
        sets: of each target of classes, in their order, ``bool [R, K]``, which of its K classes; none where there is
            no answer.
    """

    level: float
    low: np.ndarray
    high: np.ndarray
    sets: dict[str, np.ndarray]

    @classmethod
    def concatenate(cls, parts: Sequence[PredictionInterval]) -> PredictionInterval:
        """Those of several tables one behind the other: at least one, of the same level and targets."""
        low, high = (np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high"))
        sets = {name: np.concatenate([part.sets[name] for part in parts]) for name in parts[0].sets}
        return cls(parts[0].level, low, high, sets)

    def take_rows(self, rows: np.ndarray) -> PredictionInterval:
        """Those of some of the R; ``rows``: ``int64 [B]``."""
        sets = {name: each[rows] for name, each in self.sets.items()}
        return replace(self, low=self.low[rows], high=self.high[rows], sets=sets)

    def average_groups(self, groups: np.ndarray) -> PredictionInterval:
        """What is alike gets the mean of its bounds, and every class that any of it may have.

        ``groups``: ``int64 [R]``, the same for what is alike.
        """
        sets = {name: _group_means(each, groups) > 0 for name, each in self.sets.items()}
        return replace(self, low=_group_means(self.low, groups), high=_group_means(self.high, groups), sets=sets)


@dataclass
class Neighbours:
    """The training molecules that are nearest to R molecules.

    Attributes:
        similarity: ``float32 [R]``, Tanimoto's, of Morgan fingerprints; nan where there is no molecule.
        in_domain: ``bool [R]``, whether it is as large as of 95 percent of the training molecules among each other, and
            the molecule at most half as large again as the largest of them.
        nearest: their SMILES, or where these are not at hand the rows of the training data; None where not asked for.
    """

    similarity: np.ndarray
    in_domain: np.ndarray
    nearest: list[str | None] | None


@dataclass
class Predictions:
    """Answers, row by row.

    Of a model of atoms, or of bonds, ``values``, ``std`` and ``interval`` have a row for each of these, molecule by
    molecule, and ``ptr`` says which are whose.

    Attributes:
        values: ``float32 [R, W]``; nan where there is no answer. A number in its unit for a target that is one, the
            probability of the second class for one of two classes, of each class for one of several.
        errors: for each row None, or why it has no answer.
        tasks: the T targets.
        spread: ``float32 [R, W]``, the standard deviation of what several models answer; None of one model. The values
            are their means then.
        interval: where it was asked for.
        neighbours: where an interval, or they, were asked for.
        ptr: ``int64 [R + 1]``, of a model of atoms or bonds: those of row r are ``values[ptr[r]:ptr[r + 1]]``. Else
            None.
    """

    values: np.ndarray
    errors: list[str | None]
    tasks: list[Task]
    std: np.ndarray | None = None
    interval: PredictionInterval | None = None
    neighbours: Neighbours | None = None
    ptr: np.ndarray | None = None

    @property
    def by_row(self) -> list[np.ndarray]:
        """The values of each row: ``float32 [n, W]`` of its n atoms or bonds, ``[1, W]`` of a model of molecules."""
        ptr = np.arange(len(self.errors) + 1) if self.ptr is None else self.ptr
        return [self.values[begin:end] for begin, end in pairwise(ptr.tolist())]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """``int64 [B]``: where the values of some rows stand; of a model of atoms or bonds ``[M]``, row by row."""
        return rows if self.ptr is None else ragged_indices(self.ptr, rows)

    def reordered(self, orders: Sequence[AtomBondOrder | None]) -> Predictions:
        """Answers of atoms or bonds in the order of the SMILES, in place of that of the graphs; those that are alike
        get their mean. ``orders``: of each row; where there is none its answers stay as they are.
        """
        assert self.ptr is not None
        places, groups = np.arange(len(self.values)), np.arange(len(self.values))
        for begin, order in zip(self.ptr[:-1].tolist(), orders, strict=True):
            if order is not None:
                places[begin : begin + len(order)] = begin + order.places
                if order.groups is not None:
                    groups[begin : begin + len(order)] = begin + order.groups
        std = None if self.std is None else _group_means(self.std[places], groups)
        interval = None if self.interval is None else self.interval.take_rows(places).average_groups(groups)
        return replace(self, values=_group_means(self.values[places], groups), std=std, interval=interval)

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Those of several tables one behind the other, but for the names of neighbours: at least one, of one model
        asked for the same."""
        first = parts[0]
        std = [part.std for part in parts if part.std is not None]
        intervals = [part.interval for part in parts if part.interval is not None]
        near = [part.neighbours for part in parts if part.neighbours is not None]
        similar, inside = [each.similarity for each in near], [each.in_domain for each in near]
        counts = [np.diff(part.ptr) for part in parts if part.ptr is not None]
        return cls(
            np.concatenate([part.values for part in parts]),
            [error for part in parts for error in part.errors],
            first.tasks,
            np.concatenate(std) if std else None,
            PredictionInterval.concatenate(intervals) if intervals else None,
            Neighbours(np.concatenate(similar), np.concatenate(inside), None) if near else None,
            ptr=pointers(np.concatenate(counts)) if counts else None,
        )

    @property
    def targets(self) -> list[str]:
        """T names."""
        return [task.name for task in self.tasks]

    @property
    def columns(self) -> list[str]:
        """W names of the values."""
        return prediction_columns(self.tasks)

    def classes(self, target: str) -> list[str | None]:
        """The most probable class of each row; raises KeyError for a target that has no classes."""
        for _, task, where in each_target(self.tasks):
            if task.name == target and task.classes:
                return predicted_classes(self.values[:, where], task)
        raise KeyError(target)

    def to_frame(self) -> DataFrame:
        """A data frame with a row for each: the columns that ``graphslice predict`` adds to a table.

        These are ``<target>_pred``, of classes the probabilities, of several models the deviations, what was asked for
        of intervals and of the nearest molecules, and ``error``.
        """
        return pa.table(output_arrays(self)).to_pandas()


def _group_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """``float32 [S, W]``: each row of the values as the mean over the rows of its group, ``int64 [S]``."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return values
    sums = np.stack([np.bincount(inverse, column) for column in values.T], axis=1)
    return (sums / counts[:, None]).astype(np.float32)[inverse]


# --- as columns of a table -------------------------------------------------------------------------


def output_columns(
    tasks: Sequence[Task], std: bool = False, interval: float | None = None, nearest: bool = False
) -> list[str]:
    """Names of the columns that a prediction adds to a table; ``std``: of several models."""
    found = []
    for task in tasks:
        found += [*_prediction_names(task), *(_std_names(task) if std else [])]
        found += [] if interval is None else _interval_names(task)
    of_domain = ["in_domain", "similarity"] if interval is not None or nearest else []
    return [*found, *of_domain, *(["nearest"] if nearest else []), "error"]


def check_output_columns(tasks: Sequence[Task]) -> None:
    """Raise :class:`InputError` if two targets would add a column of one name, such as a class ``low`` of ``x`` and a
    bound of ``x_prob``."""
    counts = Counter(output_columns(tasks, std=True, interval=90.0, nearest=True))
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"of these targets two columns of predictions would be called {repeated[0]!r}: rename one")


def _prediction_names(task: Task) -> list[str]:
    """What a target adds: its prediction, and of classes the probabilities."""
    return [f"{task.name}_pred", *(task.columns if task.classes else [])]


def _std_names(task: Task) -> list[str]:
    """What a target adds of several models: the standard deviation of each of its numbers."""
    return [f"{name}_std" for name in task.columns]


def _interval_names(task: Task) -> list[str]:
    """What a target adds of an interval."""
    return [f"{task.name}_set"] if task.classes else [f"{task.name}_low", f"{task.name}_high"]


def output_arrays(answers: Predictions) -> dict[str, pa.Array]:
    """The columns of :func:`output_columns` with what they hold; those of targets of atoms or bonds hold lists."""
    found = _target_arrays(answers) if answers.ptr is None else _target_list_arrays(answers, answers.ptr)
    return found | _domain_arrays(answers) | {"error": text_array(list(answers.errors))}


def _target_arrays(answers: Predictions) -> dict[str, pa.Array]:
    found = {}
    for t, task, where in each_target(answers.tasks):
        predicted, *probabilities = _prediction_names(task)
        values = answers.values[:, where]
        if task.classes:
            found[predicted] = text_array(predicted_classes(values, task))
        for name, column in zip(probabilities or [predicted], values.T, strict=True):
            found[name] = number_array(column)
        if answers.std is not None:
            for name, column in zip(_std_names(task), answers.std[:, where].T, strict=True):
                found[name] = number_array(column)
        found |= _interval_arrays(answers.interval, task, t, np.isfinite(values).all(axis=1))
    return found


def _target_list_arrays(answers: Predictions, ptr: np.ndarray) -> dict[str, pa.Array]:
    """:func:`_target_arrays` of atoms or bonds: the columns of a table that has a row for each of these, as lists."""
    answered = np.array([error is None for error in answers.errors], bool)
    return {name: list_array(column, ptr, answered) for name, column in _target_arrays(answers).items()}


def _interval_arrays(
    interval: PredictionInterval | None, task: Task, t: int, answered: np.ndarray
) -> dict[str, pa.Array]:
    """The columns of :func:`_interval_names`; of classes those that cannot be ruled out, with | between."""
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
    return dict(zip(_interval_names(task), columns, strict=True))


def _domain_arrays(answers: Predictions) -> dict[str, pa.Array]:
    """How near the training molecules are, where that was asked for; nothing where there is no molecule."""
    if (near := answers.neighbours) is None:
        return {}
    known = np.isfinite(near.similarity)
    found = {
        "in_domain": bool_array(near.in_domain, known),
        "similarity": number_array(near.similarity),
    }
    return found if near.nearest is None else found | {"nearest": text_array(near.nearest)}
