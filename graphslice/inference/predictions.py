"""Predictions: answers for molecules, and why some have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from graphslice.inference.columns import columns_of
from graphslice.tasks import Task, answer_columns, each_target, predicted_classes

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass
class Interval:
    """What the labels of R molecules are expected to be, T targets.

    Attributes:
        level: in percent, the share of molecules whose label is expected here.
        low: ``float32 [R, T]``, the smallest number; nan of classes, and where there is no answer.
        high: ``float32 [R, T]``, the largest. Both are infinite where the model was calibrated on too few molecules.
        sets: of each target of classes ``bool [R, K]``, which of its K classes; none where there is no answer.
    """

    level: float
    low: np.ndarray
    high: np.ndarray
    sets: dict[str, np.ndarray]

    @classmethod
    def joined(cls, parts: Sequence[Interval]) -> Interval:
        """Those of several tables one behind the other: at least one, of the same level and targets."""
        low, high = (np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high"))
        sets = {name: np.concatenate([part.sets[name] for part in parts]) for name in parts[0].sets}
        return cls(parts[0].level, low, high, sets)


@dataclass
class Neighbours:
    """The training molecules that are nearest to R molecules.

    Attributes:
        similarity: ``float32 [R]``, Tanimoto's, of Morgan fingerprints; nan where there is no molecule.
        in_domain: ``bool [R]``, whether it is as large as of 95 percent of the training molecules among each other.
        nearest: their SMILES, or where these are not at hand the rows of the training data; None where not asked for.
    """

    similarity: np.ndarray
    in_domain: np.ndarray
    nearest: list[str | None] | None


@dataclass
class Predictions:
    """Answers, row by row.

    Attributes:
        values: ``float32 [R, W]``; nan where there is no answer. A number in its unit for a target that is one, the
            probability of the second class for one of two classes, of each class for one of several.
        errors: for each row None, or why it has no answer.
        tasks: the T targets.
        spread: ``float32 [R, W]``, the standard deviation of what several models answer; None of one model. The values
            are their means then.
        interval: where it was asked for.
        neighbours: where an interval, or they, were asked for.
    """

    values: np.ndarray
    errors: list[str | None]
    tasks: list[Task]
    spread: np.ndarray | None = None
    interval: Interval | None = None
    neighbours: Neighbours | None = None

    @property
    def targets(self) -> list[str]:
        """T names."""
        return [task.name for task in self.tasks]

    @property
    def columns(self) -> list[str]:
        """W names of the values."""
        return answer_columns(self.tasks)

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
        return pa.table(columns_of(self)).to_pandas()
