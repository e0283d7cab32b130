"""Predictions: answers for molecules, and why some have none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphslice.tasks import Task, answer_columns, each_target, predicted_classes


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
    """

    values: np.ndarray
    errors: list[str | None]
    tasks: list[Task]
    spread: np.ndarray | None = None

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
