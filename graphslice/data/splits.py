"""Which molecules train, which choose the best model, and which judge it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.errors import InputError

#: The parts of a split and the words that name them in a column.
PARTS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation", "dev"),
    "test": ("test",),
}
_PART_OF = {word: part for part, words in PARTS.items() for word in words}
_VALID_SHARE = _TEST_SHARE = 0.1

Split = dict[str, np.ndarray]


def random_split(rows: np.ndarray, seed: int) -> Split:
    """80 / 10 / 10 percent at random. ``rows``: int64, the rows to divide."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    valid, test = _share(len(rows), _VALID_SHARE), _share(len(rows), _TEST_SHARE)
    return {
        "train": np.sort(shuffled[valid + test :]),
        "valid": np.sort(shuffled[:valid]),
        "test": np.sort(shuffled[valid : valid + test]),
    }


def scaffold_split(rows: np.ndarray, smiles: Sequence[str], seed: int = 0) -> Split:
    """80 / 10 / 10 percent with no Bemis-Murcko scaffold in two parts, the largest groups in training.

    Groups go in the order of their size, those of one size at random, each to training while it
    fits there, then to validation, then to test (in the manner of MoleculeNet, Wu et al. 2018).
    """
    groups: dict[str, list[int]] = defaultdict(list)
    with rdBase.BlockLogs():
        for row in rows:
            mol = Chem.MolFromSmiles(smiles[row])
            groups[MurckoScaffold.MurckoScaffoldSmiles(mol=mol, includeChirality=False)].append(int(row))
    room = {"valid": _share(len(rows), _VALID_SHARE), "test": _share(len(rows), _TEST_SHARE)}
    room["train"] = len(rows) - room["valid"] - room["test"]
    split: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    shuffled = np.random.default_rng(seed).permutation(len(groups))  # a file may be sorted by its labels
    members = list(groups.values())
    for group in sorted((members[i] for i in shuffled), key=len, reverse=True):
        part = next((part for part in ("train", "valid") if len(split[part]) + len(group) <= room[part]), "test")
        split[part] += group
    return {part: np.array(sorted(members), dtype=np.int64) for part, members in split.items()}


def column_split(rows: np.ndarray, words: Sequence[object], column: str, first: int = 0) -> Split:
    """The split that a column of the file gives; ``first`` is where in the file the words begin.

    Raises:
        InputError: for a word that names no part.
    """
    split: dict[str, list[int]] = {part: [] for part in PARTS}
    for row in rows:
        if not is_part(words[row]):
            raise InputError(f"row {first + row + 1}: {column!r} is {words[row]!r}; it must be train, valid or test")
        split[_PART_OF[_word(words[row])]].append(int(row))
    return {part: np.array(members, dtype=np.int64) for part, members in split.items()}


def is_part(word: object) -> bool:
    """Whether a cell names a part of a split."""
    return _word(word) in _PART_OF


def _word(cell: object) -> str:
    return str(cell).strip().lower()


def _share(rows: int, share: float) -> int:
    return max(1, int(rows * share)) if rows >= 3 else 0
