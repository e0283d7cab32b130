"""Labels of a store as a model or a run takes them: a class has the place there that it has among theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.data.parse_cells import class_indices, class_key, number_key, parse_number
from graphslice.tasks import Task


def recode_labels(
    labels: np.ndarray, stored: Sequence[Task], asked: Sequence[Task]
) -> tuple[np.ndarray, dict[int, str]]:
    """Labels that say of another task's classes, or of numbers, what they say of their own.

    Args:
        labels: ``float64 [R, T]``, numbers or places among the classes of ``stored``; nan where unknown.
        stored: T tasks, as the store has them.
        asked: T tasks, as the labels are wanted.

    Returns:
        ``float64 [R, T]``, nan where there is no such class or number; and why a row has none, by row.
    """
    found, rejected = labels, dict[int, str]()
    for t, (own, wanted) in enumerate(zip(stored, asked, strict=True)):
        if own.classes == wanted.classes:
            continue
        known = np.flatnonzero(~np.isnan(labels[:, t]))
        values, which = np.unique(labels[known, t], return_inverse=True)
        words = [own.classes[int(value)] if own.classes else number_key(value) for value in values.tolist()]
        if wanted.classes:
            places = class_indices(wanted.classes)
            new, why = [places.get(class_key(word), np.nan) for word in words], f"none of its {len(places)} classes"
        else:
            new, why = [parse_number(word) for word in words], "not a finite number"
        found = found.copy() if found is labels else found
        found[known, t] = np.array(new, np.float64)[which]
        for row, word in zip(known.tolist(), which.tolist(), strict=True):
            if np.isnan(new[word]):
                rejected.setdefault(row, f"target {wanted.name!r} is {why}: {words[word]!r}")
    return found, rejected
