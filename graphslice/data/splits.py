"""The splits of a data set: which molecules train, which choose the best model, and which judge it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

#: Names of the splits. A store keeps the place of a name in this tuple, so its order never changes.
SPLITS = ("train", "valid", "test", "test-dev", "test-challenge")
#: In place of a number of :data:`SPLITS`: the row belongs to no split.
NO_SPLIT = -1

_VALID_SHARE = _TEST_SHARE = 0.1

#: The rows of each split by its name, ``int64``.
Splits = dict[str, np.ndarray]


def random_split(rows: np.ndarray, seed: int) -> Splits:
    """80 / 10 / 10 percent at random. ``rows``: int64, the rows to divide."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    valid, test = _share(len(rows), _VALID_SHARE), _share(len(rows), _TEST_SHARE)
    return {
        "train": np.sort(shuffled[valid + test :]),
        "valid": np.sort(shuffled[:valid]),
        "test": np.sort(shuffled[valid : valid + test]),
    }


def scaffold_split(rows: np.ndarray, smiles: Sequence[str], seed: int = 0) -> Splits:
    """80 / 10 / 10 percent with no Bemis-Murcko scaffold in two splits, the largest groups in training.

    Groups go in the order of their size, those of one size at random, each to training while it
    fits there, then to validation, then to test (in the manner of MoleculeNet, Wu et al. 2018).

    Args:
        rows: ``int64``, the rows to divide.
        smiles: of all rows of the data set.
        seed: of the order of groups of one size.
    """
    # Imported here: whoever predicts needs neither.
    from rdkit import Chem, rdBase
    from rdkit.Chem.Scaffolds import MurckoScaffold

    groups: dict[str, list[int]] = defaultdict(list)
    with rdBase.BlockLogs():
        for row in rows:
            mol = Chem.MolFromSmiles(smiles[row])
            groups[MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=False)].append(int(row))
    capacity = {"valid": _share(len(rows), _VALID_SHARE), "test": _share(len(rows), _TEST_SHARE)}
    capacity["train"] = len(rows) - capacity["valid"] - capacity["test"]
    splits: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    shuffled = np.random.default_rng(seed).permutation(len(groups))  # a file may be sorted by its labels
    members = list(groups.values())
    for group in sorted((members[i] for i in shuffled), key=len, reverse=True):
        fitting = (name for name in ("train", "valid") if len(splits[name]) + len(group) <= capacity[name])
        splits[next(fitting, "test")] += group
    return {name: np.array(sorted(members), dtype=np.int64) for name, members in splits.items()}


def _share(rows: int, share: float) -> int:
    return max(1, int(rows * share)) if rows >= 3 else 0


# --- splits as a number for each row --------------------------------------------------------------


def number_splits(splits: Splits | None, rows: int) -> np.ndarray:
    """``int8 [rows]``: the number of each row's split in :data:`SPLITS`, ``NO_SPLIT`` for none."""
    numbers = np.full(rows, NO_SPLIT, np.int8)
    for name, members in (splits or {}).items():
        numbers[members] = SPLITS.index(name)
    return numbers


def name_splits(numbers: np.ndarray, usable: np.ndarray, names: Iterable[str]) -> Splits:
    """The usable rows of some splits: the inverse of :func:`number_splits`.

    Args:
        numbers: ``int8 [R]``, each row's number in :data:`SPLITS`.
        usable: ``bool [R]``; the other rows are left out.
        names: of the splits.
    """
    return {name: np.flatnonzero((numbers == SPLITS.index(name)) & usable) for name in names}
