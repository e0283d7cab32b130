"""The splits of a data set: which molecules train, which choose the best model, and which judge it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

#: Names of the splits. A store keeps the place of a name in this tuple, so its order never changes.
SPLITS = ("train", "valid", "test", "test-dev", "test-challenge")
#: In place of a number of :data:`SPLITS`: the row belongs to no split.
NO_SPLIT = -1
#: Ways to split that are made, not read from a column.
SPLIT_METHODS = ("random", "scaffold", "cluster")

#: The rows of each split by its name, ``int64``.
Splits = dict[str, np.ndarray]


def encode_splits(splits: Splits | None, rows: int) -> np.ndarray:
    """``int8 [rows]``: the number of each row's split in :data:`SPLITS`, ``NO_SPLIT`` for none."""
    numbers = np.full(rows, NO_SPLIT, np.int8)
    for name, members in (splits or {}).items():
        numbers[members] = SPLITS.index(name)
    return numbers


def decode_splits(numbers: np.ndarray, usable: np.ndarray, names: Iterable[str]) -> Splits:
    """The usable rows of some splits: the inverse of :func:`encode_splits`.

    Args:
        numbers: ``int8 [R]``, each row's number in :data:`SPLITS`.
        usable: ``bool [R]``; the other rows are left out.
        names: of the splits.
    """
    return {name: np.flatnonzero((numbers == SPLITS.index(name)) & usable) for name in names}


def present_splits(numbers: np.ndarray) -> list[str]:
    """The names of the splits that any row is in. ``numbers``: ``int8 [R]`` of :func:`encode_splits`."""
    return [name for number, name in enumerate(SPLITS) if (numbers == number).any()]
