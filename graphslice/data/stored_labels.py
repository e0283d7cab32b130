"""Conversion of stored labels to the class order of a model or a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.data.parse_cells import class_indices, class_key, number_key, parse_number
from graphslice.tasks import Task


def recode_labels(
    labels: np.ndarray, stored: Sequence[Task], requested: Sequence[Task]
) -> tuple[np.ndarray, dict[int, str]]:
    """Convert labels from the stored tasks to the requested tasks.

    Args:
        labels: ``float64 [R, T]``, numbers, or class indices of the ``stored`` tasks; nan where unknown.
        stored: the T tasks of the store.
        requested: the T tasks of the model or run.

    Returns:
        ``float64 [R, T]``, numbers or class indices of the ``requested`` tasks, nan where there is no such class or
        number; and by row the reason, for rows with such a label.
    """
    recoded, rejected = labels, dict[int, str]()
    for t, (source, target) in enumerate(zip(stored, requested, strict=True)):
        if source.classes == target.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels[:, t]))
        values, which = np.unique(labels[known, t], return_inverse=True)
        texts = [source.classes[int(value)] if source.classes else number_key(value) for value in values.tolist()]
        if target.classes:
            indices = class_indices(target.classes)
            new, fault = [indices.get(class_key(text), np.nan) for text in texts], f"none of its {len(indices)} classes"
        else:
            new, fault = [parse_number(text) for text in texts], "not a finite number"
        recoded = recoded.copy() if recoded is labels else recoded
        recoded[known, t] = np.array(new, np.float64)[which]
        for row, index in zip(known.tolist(), which.tolist(), strict=True):
            if np.isnan(new[index]):
                rejected.setdefault(row, f"target {target.name!r} is {fault}: {texts[index]!r}")
    return recoded, rejected
