"""Source: labelled molecules, row by row, from wherever they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.labelled_rows import LabelledRows
from graphslice.data.ogb_lsc import OGB_FOLDERS
from graphslice.data.splits import Splits, encode_splits
from graphslice.data.store import BATCH_ROWS, GraphStore
from graphslice.tasks import Task

if TYPE_CHECKING:
    from graphslice.chem import MolGraph

#: Why a row is rejected that has nothing wrong but that there is no label.
UNLABELLED = "no target value"


@dataclass
class LabelledDataset:
    """Labelled molecules, row by row as their source has them.

    Attributes:
        name: demo, pcqm4m, pcqm4mv2, the file's path, or pyg.
        smiles: one text a row; empty where ``graphs`` or ``store`` stands instead.
        targets: ``float64 [R, T]`` in the user's unit, or the place of the class among its task's; nan where unknown.
            Of targets of atoms or bonds the mean over those of the row.
        tasks: what is asked of each of the T targets.
        rejected: reason by row, for rows whose labels are of no use.
        splits: rows of each split by name, where the source says so; else None.
        graphs: molecules that are graphs already (without atoms where rejected), or None.
        store: molecules that are featurized already, or None.
        columns: ``float32 [R, K]``, descriptors that are columns of a table, nan where unknown; or None.
        table: the cells that all this was made of, where they lie in no file; else None.
        sites: the labels of the atoms, or bonds, where the targets are of these; else None.
        auxiliary: labels of atoms and of bonds, by level, that are learned beside targets of molecules and not
            predicted; in the order of the graphs of ``store``.
        notes: what the user should know of how it was read.
    """

    name: str
    smiles: list[str]
    targets: np.ndarray
    tasks: list[Task]
    rejected: dict[int, str] = field(default_factory=dict)
    splits: Splits | None = None
    graphs: list[MolGraph] | None = None
    store: GraphStore | None = None
    columns: np.ndarray | None = None
    table: pa.Table | None = None
    atom_bond_labels: AtomBondLabels | None = None
    auxiliary: dict[str, AtomBondLabels] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def target_names(self) -> list[str]:
        """T names."""
        return [task.name for task in self.tasks]

    @property
    def all_target_names(self) -> list[str]:
        """The names of all targets, the auxiliary ones behind the others."""
        return self.target_names + [name for labels in self.auxiliary.values() for name in labels.names]

    @property
    def is_pcqm4m(self) -> bool:
        """Whether OGB's evaluator judges this data."""
        return self.name in OGB_FOLDERS

    @property
    def level(self) -> str:
        """What the targets are of: molecule, atom or bond."""
        return MOLECULE if self.atom_bond_labels is None else self.atom_bond_labels.level

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """``float64 [B, T]``: those of some rows; of targets of atoms or bonds ``[M, T]``, row by row."""
        return self.targets[rows] if self.atom_bond_labels is None else self.atom_bond_labels[rows]

    def molecules(self, rows: np.ndarray) -> np.ndarray:
        """``int64 [B]``, or ``[M]``: which of some rows, counted from 0, each of their :meth:`labels` is of."""
        return np.repeat(
            np.arange(len(rows)), 1 if self.atom_bond_labels is None else self.atom_bond_labels.counts[rows]
        )

    def unreadable(self) -> dict[int, str]:
        """The reason by row, in order, for rows that have a label of which nothing can be made, or are malformed."""
        lost = np.isnan(self.targets).all(axis=1)
        return {row: why for row, why in sorted(self.rejected.items()) if lost[row] and why != UNLABELLED}

    def fingerprint(self) -> str:
        """A hash of molecules, labels and splits, to notice that a run's data has changed."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes())
        digest.update("\n".join(self.smiles).encode(errors="surrogateescape"))
        for graph in self.graphs or ():
            digest.update(graph.atoms.tobytes() + graph.bonds.tobytes())
        if self.store is not None:
            digest.update(self.store.info.fingerprint.encode())
        if self.columns is not None:
            digest.update(np.ascontiguousarray(self.columns).tobytes())
        for atom_bond_labels in filter(None, (self.atom_bond_labels, *self.auxiliary.values())):
            digest.update(
                atom_bond_labels.level.encode() + atom_bond_labels.values.tobytes() + atom_bond_labels.ptr.tobytes()
            )
        for name, rows in (self.splits or {}).items():
            digest.update(name.encode() + rows.tobytes())
        return digest.hexdigest()[:16]

    def chunks(self) -> Iterator[LabelledRows]:
        """The rows as :func:`~graphslice.data.featurize.build_store` takes them.

        Rows without any label, which no split has, have no SMILES: neither graphs nor descriptors are made of them.
        """
        split = encode_splits(self.splits, len(self))
        # Not all that are rejected: the fingerprint, by which stores are kept, has the labels and not the reasons.
        unused = (
            np.zeros(len(self), bool) if self.atom_bond_labels is not None else ~usable_mask(len(self), self.rejected)
        )
        unused &= np.isnan(self.targets).all(axis=1)
        for begin in range(0, len(self), BATCH_ROWS):
            rows = slice(begin, begin + BATCH_ROWS)
            smiles = ["" if out else text for text, out in zip(self.smiles[rows], unused[rows].tolist(), strict=True)]
            columns = None if self.columns is None else self.columns[rows]
            yield LabelledRows(smiles, self.targets[rows], split[rows], {}, columns)


def rename_tasks(targets: Sequence[str], tasks: Sequence[Task] | None) -> list[Task] | None:
    """What is asked of some targets, if that is known of as many, under the names that they have here."""
    if tasks is None or len(tasks) != len(targets):
        return None
    return [replace(task, name=name) for task, name in zip(tasks, targets, strict=True)]


def reject_unlabelled(targets: np.ndarray, rejected: dict[int, str]) -> dict[int, str]:
    """The rejected rows, and those without any label. ``targets``: ``float64 [R, T]``."""
    unlabelled = np.flatnonzero(np.isnan(targets).all(axis=1)).tolist()
    return rejected | {row: UNLABELLED for row in unlabelled if row not in rejected}


def usable_mask(rows: int, rejected: dict[int, str]) -> np.ndarray:
    """``bool [rows]``: which are not rejected."""
    usable_mask = np.ones(rows, dtype=bool)
    usable_mask[list(rejected)] = False
    return usable_mask
