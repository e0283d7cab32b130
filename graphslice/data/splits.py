"""Training, validation and test splits of a dataset."""

from __future__ import annotations

import numpy as np

#: Names of the splits. Stores contain indices into this tuple, so its order must never change.
SPLITS = ("train", "valid", "test", "test-dev", "test-challenge")
#: Value in place of an index into :data:`SPLITS`: the row belongs to no split.
NO_SPLIT = -1
#: Built-in split methods, in contrast to a split that is read from a column.
SPLIT_METHODS = ("random", "scaffold", "cluster")
#: Value of ``data.split``: the predefined split of PCQM4M, with its validation set in the training set.
TRAIN_AND_VALID = "train+valid"

#: Rows of each split by name, ``int64``.
Splits = dict[str, np.ndarray]


def split_name(split: str) -> str:
    """Return the name of a split for the user."""
    return {"train": "training", "valid": "validation"}.get(split, split)


def encode_splits(splits: Splits | None, rows: int) -> np.ndarray:
    """Encode splits of a dataset: ``int8 [rows]``, index of each row's split in :data:`SPLITS`, or ``NO_SPLIT``."""
    codes = np.full(rows, NO_SPLIT, np.int8)
    for name, members in (splits or {}).items():
        codes[members] = SPLITS.index(name)
    return codes


def without_validation(codes: np.ndarray) -> np.ndarray:
    """Move the validation set into the training set; ``codes`` as :func:`encode_splits` returns them."""
    return np.where(codes == SPLITS.index("valid"), np.int8(SPLITS.index("train")), codes)


def decode_splits(codes: np.ndarray, usable: np.ndarray) -> Splits:
    """Return the rows of each present split that are ``usable``, ``bool [R]``: the inverse of :func:`encode_splits`."""
    return {name: np.flatnonzero((codes == SPLITS.index(name)) & usable) for name in present_splits(codes)}


def present_splits(codes: np.ndarray) -> list[str]:
    """Return the names of the splits that have rows; ``codes`` as :func:`encode_splits` returns them."""
    return [name for code, name in enumerate(SPLITS) if (codes == code).any()]


def random_subset(rows: np.ndarray, limit: int, seed: int = 0) -> np.ndarray:
    """Return the rows, ``int64``; of more than ``limit`` a random sample in ascending order."""
    if len(rows) <= limit:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, limit, replace=False))
