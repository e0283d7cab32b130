"""Labelled molecules, row by row: chunks of them, and the datasets that all loaders return."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE
from graphslice.data.labels import Labels, pointers
from graphslice.data.ogb import OGB_FOLDERS
from graphslice.data.splits import Splits, decode_splits
from graphslice.data.store import BATCH_ROWS, GraphStore
from graphslice.errors import InputError, pluralize, shown
from graphslice.tasks import Task

if TYPE_CHECKING:
    from graphslice.chem import MolGraph


#: Reason for not using a row that is valid but has no label, and one that the user gave no weight.
UNLABELLED, ZERO_WEIGHT = "no target value", "weight 0"


@dataclass
class LabelledDataset:
    """Labelled molecules, in the row order of their source: all of it, or some consecutive rows."""

    name: str  # demo, pcqm4m, pcqm4mv2, the path of the file, or pyg
    smiles: Sequence[str]  # one per row; empty if graphs is used instead
    all_labels: Labels  # in the user's unit, or class indices
    tasks: list[Task]  # of each of the T targets
    faults: dict[int, str] = field(default_factory=dict)  # reason by row that is not used, or not all labels of it
    split: np.ndarray | None = None  # int8 [R], predefined: index in SPLITS, or NO_SPLIT
    graphs: list[MolGraph] | None = None  # without atoms where rejected
    store: GraphStore | None = None  # preprocessed molecules
    columns: np.ndarray | None = None  # float32 [R, K], descriptor columns, nan where unknown
    table: pa.Table | None = None  # the cells, if they were not read from a file
    auxiliary: dict[str, Labels] = field(default_factory=dict)  # of atoms and bonds: trained on, not predicted
    smiles_column: str = ""  # of a table
    notes: tuple[str, ...] = ()  # for the user, on how the dataset was read
    identifiers: dict[str, list[str]] = field(default_factory=dict)  # R texts by column, for the user

    def __len__(self) -> int:
        return len(self.all_labels)

    def __getitem__(self, rows: slice) -> LabelledDataset:
        begin, end, _ = rows.indices(len(self))
        return replace(
            self,
            smiles=self.smiles[begin:end],
            all_labels=self.all_labels.rows(begin, end),
            faults={row - begin: reason for row, reason in self.faults.items() if begin <= row < end},
            split=None if self.split is None else self.split[begin:end],
            columns=None if self.columns is None else self.columns[begin:end],
            identifiers={name: cells[begin:end] for name, cells in self.identifiers.items()},
        )

    @classmethod
    def join(cls, parts: Sequence[LabelledDataset]) -> LabelledDataset:
        """Concatenate tables with the same targets and columns; name and notes are those of the first."""
        if len(parts) == 1:
            return parts[0]
        first, rows = parts[0], pointers([len(part) for part in parts]).tolist()
        return replace(
            first,
            smiles=[text for part in parts for text in part.smiles],
            all_labels=Labels.join([part.all_labels for part in parts]),
            faults={
                begin + row: fault
                for begin, part in zip(rows, parts, strict=False)
                for row, fault in part.faults.items()
            },
            split=None if first.split is None else np.concatenate([part.split for part in parts]),
            columns=None if first.columns is None else np.concatenate([part.columns for part in parts]),
            identifiers={name: [text for p in parts for text in p.identifiers[name]] for name in first.identifiers},
        )

    @cached_property
    def used(self) -> np.ndarray:
        """Mask of the rows with a known label and weight, and a molecule as far as that is known, ``bool [R]``."""
        used = np.ones(len(self), bool) if self.is_pcqm4m else self.all_labels.used()  # OGB publishes no test labels
        if self.store is not None:
            return used & (self.store.sizes > 0)
        return used if self.graphs is None else used & [graph.num_atoms > 0 for graph in self.graphs]

    @cached_property
    def rejected(self) -> dict[int, str]:
        """The reasons, by row, of rows that are not used."""
        return {row: reason for row, reason in self.faults.items() if not self.used[row]}

    @cached_property
    def invalid_labels(self) -> dict[int, str]:
        """The reasons, by row, of rows that are used without a label that is invalid."""
        return {row: reason for row, reason in self.faults.items() if self.used[row]}

    @cached_property
    def splits(self) -> Splits | None:
        """The used rows of each predefined split."""
        return None if self.split is None else decode_splits(self.split, self.used)

    @cached_property
    def targets(self) -> np.ndarray:
        """Labels of each row, ``float64 [R, T]``, nan where unknown; of atoms or bonds their means."""
        return self.all_labels.means()

    @cached_property
    def least_labels(self) -> np.ndarray:
        """The least label of each target, or upper bound of one, in all rows: ``float64 [T]``."""
        bounds = self.all_labels.bounds
        upper = np.inf if bounds is None else bounds[..., 1]
        return np.fmin(self.all_labels.values, upper).min(axis=0, initial=np.inf)

    @property
    def target_names(self) -> list[str]:
        return [task.name for task in self.tasks]

    @property
    def is_pcqm4m(self) -> bool:
        """True if the dataset is PCQM4M-LSC, which is evaluated with OGB's evaluator."""
        return self.name in OGB_FOLDERS

    @property
    def level(self) -> str:
        return self.all_labels.level

    def bounds(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the bounds of some rows, ``float64 [R, T, 2]``; None if the dataset has none."""
        return None if self.all_labels.bounds is None else self.all_labels.bounds[rows]

    def weights(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the weights of some rows, ``float64 [R]``; None if all are equal."""
        return None if self.all_labels.weights is None else self.all_labels.weights[rows]

    def unreadable(self) -> dict[int, str]:
        """Return the reasons, sorted by row, for malformed rows and rows of which no label is valid."""
        unlabelled = ~self.all_labels.known()
        return {
            row: reason for row, reason in sorted(self.rejected.items()) if unlabelled[row] and reason != UNLABELLED
        }

    def fingerprint(self) -> str:
        """Return a hash of molecules, labels and splits, by which changes of the data of a run are detected."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes())
        if self.store is None:
            digest.update("\n".join(self.smiles).encode(errors="surrogateescape"))
        for graph in self.graphs or ():
            digest.update(graph.atoms.tobytes() + graph.bonds.tobytes())
        if self.store is not None:
            digest.update(self.store.info.fingerprint.encode())
        elif self.columns is not None:
            digest.update(np.ascontiguousarray(self.columns).tobytes())
        for values in (self.all_labels.bounds, self.all_labels.weights):
            if values is not None:
                digest.update(values.tobytes())
        for labels in (self.all_labels, *self.auxiliary.values()):
            if labels.level != MOLECULE or labels.names:
                digest.update(labels.level.encode() + labels.values.tobytes() + labels.ptr.tobytes())
        for name, rows in (self.splits or {}).items():
            digest.update(name.encode() + rows.tobytes())
        return digest.hexdigest()[:16]

    def chunks(self) -> Iterator[LabelledDataset]:
        """Yield the rows for a store; of rows without any label the SMILES are left empty, so nothing is computed."""
        # Only unlabelled rows, not all rejected ones: the fingerprint that identifies a cached store covers the labels
        # but not the reasons.
        unused = ~usable_mask(len(self), self.rejected) & ~self.all_labels.known() & (self.level == MOLECULE)
        labels = Labels.of_molecules(self.targets)
        whole = replace(self, all_labels=labels, faults={}, identifiers={}, store=None, graphs=None)
        for begin in range(0, len(self), BATCH_ROWS):
            rows = slice(begin, begin + BATCH_ROWS)
            skipped = zip(self.smiles[rows], unused[rows].tolist(), strict=True)
            yield replace(whole[rows], smiles=["" if skip else text for text, skip in skipped])

    def digest(self) -> str:
        """Return a hash of the rows of a chunk and their faults, 32 hexadecimal digits of SHA-256."""
        split = None if self.split is None else self.split.tobytes()
        parts = self.fingerprint(), split, sorted(self.faults.items())
        return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:32]


_Chunk = TypeVar("_Chunk", LabelledDataset, pa.Table)


def rechunk(chunks: Iterable[_Chunk], size: int, join: Callable[[list[_Chunk]], _Chunk]) -> Iterator[_Chunk]:
    """Regroup rows into chunks of exactly ``size`` rows, except for the last; ``join`` concatenates chunks."""
    waiting: list[_Chunk] = []
    for chunk in chunks:
        waiting.append(chunk)
        while sum(map(len, waiting)) >= size:
            joined = join(waiting)
            yield joined[:size]
            waiting = [joined[size:]]
    if any(map(len, waiting)):
        yield join(waiting)


def rename_tasks(targets: Sequence[str], tasks: Sequence[Task] | None) -> list[Task] | None:
    """Rename tasks to the names of ``targets``; None if there are no tasks, or not as many as targets."""
    if tasks is None or len(tasks) != len(targets):
        return None
    return [replace(task, name=name) for task, name in zip(tasks, targets, strict=True)]


def unlabelled_rows(labels: Labels) -> dict[int, str]:
    """Return the reason for each row without any label."""
    return dict.fromkeys(np.flatnonzero(~labels.known()).tolist(), UNLABELLED)


def describe_reasons(reasons: Mapping[int, str], problem: str) -> str:
    """Describe rows with a problem, such as ``not usable``, and the reason of the first one, for the user."""
    row, reason = min(reasons.items())
    verb = "is" if len(reasons) == 1 else "are"
    return f"{pluralize(len(reasons), 'row')} {verb} {problem}; the first, row {row + 1}: {reason}"


def check_usable(
    name: str, rows: int, reasons: Mapping[int, str], smiles_column: str = "", smiles: Sequence[str] = ()
) -> None:
    """Raise :class:`InputError` if every row has a reason why it cannot be used."""
    if len(reasons) >= rows:
        first = min(reasons, default=0)
        read = f"column {smiles_column!r} was read as SMILES, and " if smiles_column else ""
        text = f", in {shown(smiles[first])}" if len(smiles) else ""
        problem = f"no row can be used; the first: {reasons[first]}{text}" if reasons else "there are no rows"
        raise InputError(f"{name}: {read}{problem}")


def usable_mask(rows: int, rejected: dict[int, str]) -> np.ndarray:
    """Return the mask of rows that are not rejected, ``bool [rows]``."""
    mask = np.ones(rows, dtype=bool)
    mask[list(rejected)] = False
    return mask
