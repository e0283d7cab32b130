"""Labelled molecules from wherever they are: the demo set, a table, a store, OGB's PCQM4M-LSC, PyG."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphslice.config import DataConfig, RunConfig
from graphslice.data.find_tasks import find_tasks, tasks_of_numbers
from graphslice.data.labels import (
    COLUMN_SPLITS,
    about,
    find_columns,
    find_target,
    listed,
    parse_chunks,
    target_names,
)
from graphslice.data.ogb_lsc import FOLDERS, TARGET, load_pcqm4m
from graphslice.data.rows import Rows
from graphslice.data.splits import SPLITS, Splits, name_splits, number_splits
from graphslice.data.store import BATCH_ROWS, STORE_SUFFIX, GraphStore
from graphslice.data.tables import CSV_SUFFIXES, PARQUET_SUFFIXES, TSV_SUFFIXES, malformed_rows, open_table
from graphslice.errors import InputError, nearest
from graphslice.resources import DEMO_CSV
from graphslice.tasks import Task, num_outputs, regressions

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphslice.chem import MolGraph

#: How the names of tables of labelled molecules end.
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + PARQUET_SUFFIXES
# Splits that are made, not read from a column.
_SPLIT_METHODS = ("random", "scaffold")
# Why a row is rejected that has nothing wrong but that there is no label.
_UNLABELLED = "no target value"


@dataclass
class Source:
    """Labelled molecules, row by row as their source has them.

    Attributes:
        name: demo, pcqm4m, pcqm4mv2, the file's path, or pyg.
        smiles: one text a row; empty where ``graphs`` or ``store`` stands instead.
        targets: ``float64 [R, T]`` in the user's unit, or the place of the class among its task's; nan where unknown.
        tasks: what is asked of each of the T targets.
        rejected: reason by row, for rows whose labels are of no use.
        splits: rows of each split by name, where the source says so; else None.
        graphs: molecules that are graphs already (without atoms where rejected), or None.
        store: molecules that are featurized already, or None.
    """

    name: str
    smiles: list[str]
    targets: np.ndarray
    tasks: list[Task]
    rejected: dict[int, str] = field(default_factory=dict)
    splits: Splits | None = None
    graphs: list[MolGraph] | None = None
    store: GraphStore | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def target_names(self) -> list[str]:
        """T names."""
        return [task.name for task in self.tasks]

    @property
    def is_pcqm4m(self) -> bool:
        """Whether OGB's evaluator judges this data."""
        return self.name in FOLDERS

    def unreadable(self) -> dict[int, str]:
        """The reason by row, in order, for rows that have a label of which nothing can be made, or are malformed."""
        lost = np.isnan(self.targets).all(axis=1)
        return {row: why for row, why in sorted(self.rejected.items()) if lost[row] and why != _UNLABELLED}

    def fingerprint(self) -> str:
        """A hash of molecules, labels and splits, to notice that a run's data has changed."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes())
        digest.update("\n".join(self.smiles).encode(errors="surrogateescape"))
        for graph in self.graphs or ():
            digest.update(graph.atoms.tobytes() + graph.bonds.tobytes())
        if self.store is not None:
            digest.update(self.store.info.fingerprint.encode())
        for name, rows in (self.splits or {}).items():
            digest.update(name.encode() + rows.tobytes())
        return digest.hexdigest()[:16]

    def chunks(self) -> Iterator[Rows]:
        """The rows as :func:`~graphslice.data.featurize.build_store` takes them."""
        split = number_splits(self.splits, len(self))
        for begin in range(0, len(self), BATCH_ROWS):
            rows = slice(begin, begin + BATCH_ROWS)
            yield Rows(self.smiles[rows], self.targets[rows], split[rows], {})


def load_source(config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
    """The labelled molecules that a configuration names.

    Args:
        config: which.
        tasks: what is asked of its targets, in their order; found from their values when not given.

    Raises:
        InputError: if they cannot be had, saying what is missing and what to do.
    """
    if config.dataset in FOLDERS:
        return ogb_source(config)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return store_source(GraphStore.open(path), config, tasks)
    return table_source(path, config, tasks)


def dataset_path(dataset: str) -> Path:
    """The file or folder of a data set that is none of OGB's.

    Raises:
        InputError: if it is neither a name nor a path.
    """
    path = DEMO_CSV if dataset == "demo" else Path(dataset)
    if dataset != "demo" and not path.exists() and path.suffix == "":
        names = ["demo", *FOLDERS]
        raise InputError(
            f"unknown dataset {dataset!r}{nearest(dataset, names)}: give {', '.join(names)}, the path of a CSV, TSV "
            "or Parquet file, of a folder of such files, or of a store of graphslice featurize"
        )
    return path


def resolved(config: RunConfig, source: Source) -> RunConfig:
    """The configuration with what the data decides, and with paths that hold from any folder."""
    data = config.data
    if source.name == "pyg":
        data = replace(data, dataset="pyg")
    elif Path(data.dataset).exists():
        data = replace(data, dataset=str(Path(data.dataset).resolve()))
    if source.is_pcqm4m:
        data = replace(data, root=str(Path(data.root).resolve()))
    data = replace(data, targets=",".join(source.target_names), fingerprint=source.fingerprint())
    return replace(config, data=data, model=replace(config.model, tasks=num_outputs(source.tasks)))


def ogb_source(config: DataConfig) -> Source:
    """PCQM4M-LSC, version 1 or 2, with OGB's splits.

    Raises:
        InputError: if the folder is damaged, or absent and cannot be downloaded.
    """
    smiles, gaps, splits = load_pcqm4m(config.dataset, config.root)
    if config.targets not in (None, TARGET):
        raise InputError(f"{config.dataset} has the one target {TARGET}, not {config.targets!r}")
    return Source(config.dataset, smiles, gaps[:, None], regressions([TARGET]), splits=splits)


def table_source(path: Path, config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
    """The labelled molecules of a CSV, TSV or Parquet file, or of a folder of such files.

    Raises:
        InputError: if it cannot be read, lacks a column, or has a target that cannot be learned.
    """
    if path.is_file() and not path.name.lower().endswith(TABLE_SUFFIXES):
        raise InputError(
            f"{path}: GraphSlice reads labelled molecules from {', '.join(TABLE_SUFFIXES)} and {STORE_SUFFIX}"
        )
    name = config.dataset
    with open_table(path) as table:
        columns = find_columns(table.columns, config, name, _SPLIT_METHODS)
        chunks = list(table.chunks)
    malformed = [reason for chunk in chunks for reason in malformed_rows(chunk).values()]
    if len(malformed) == sum(map(len, chunks)):
        raise InputError(f"{name}: no row is as the header says; the first: {malformed[0]}")
    if not columns.targets:
        columns = replace(columns, targets=[find_target(chunks, columns, name)])
    tasks = tasks_for(columns.targets, tasks) or find_tasks(chunks, columns.targets, config, name)
    columns = replace(columns, tasks=tuple(tasks))
    with about(name):
        rows = Rows.join(list(parse_chunks(chunks, columns)))
    rejected = _reject_unlabelled(rows.targets, rows.rejected)
    splits = None
    if columns.split is not None:
        splits = name_splits(rows.split, _usable(len(rows), rejected), COLUMN_SPLITS)
    return Source(name, rows.smiles, rows.targets, tasks, rejected, splits)


def tasks_for(targets: Sequence[str], tasks: Sequence[Task] | None) -> list[Task] | None:
    """What is asked of some targets, if that is known of as many, under the names that they have here."""
    if tasks is None or len(tasks) != len(targets):
        return None
    return [replace(task, name=name) for task, name in zip(tasks, targets, strict=True)]


def store_source(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> Source:
    """The labelled molecules of a store that ``graphslice featurize`` made.

    Raises:
        InputError: if it has no labels, not those asked for, or no split column of that name.
    """
    known = list(store.info.targets)
    if not known:
        raise InputError(f"{store.name} has no labels: featurize with --targets to train on it")
    names = target_names(config.targets, known) or known
    for name in names:
        if name not in known:
            raise InputError(f"{store.name} has no target {name!r}{nearest(name, known)}; it has {listed(known)}")
    numbers = store.split
    present = [split for number, split in enumerate(SPLITS) if (numbers == number).any()]
    if config.split not in (None, "random") and not (config.split == "split" and present):
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a store keeps only the split that it was made with "
            "(featurize with --split COLUMN), and no SMILES for a scaffold split; or give random"
        )
    targets = store.targets[:, [known.index(name) for name in names]]
    tasks = tasks_for(names, tasks) or _tasks_of_store(store, targets, names, config)
    is_pcqm4m = store.info.source in FOLDERS
    rejected = _errors_of(store, names)
    if not is_pcqm4m:  # OGB keeps the labels of its tests to itself
        rejected = _reject_unlabelled(targets, rejected)
    splits = None
    if config.split != "random" and present:
        splits = name_splits(numbers, _usable(len(store), rejected), present)
    return Source(store.info.source if is_pcqm4m else store.name, [], targets, tasks, rejected, splits, store=store)


def _tasks_of_store(store: GraphStore, labels: np.ndarray, names: Sequence[str], config: DataConfig) -> list[Task]:
    """What is asked of some targets of a store: what its words were, else what the numbers look like."""
    found = {task.name: task for task in store.info.tasks if task.classes}
    numbers = [t for t, name in enumerate(names) if name not in found]
    asked = tasks_of_numbers(labels[:, numbers], [names[t] for t in numbers], config, store.name)
    found |= {task.name: task for task in asked}
    return [found[name] for name in names]


def _errors_of(store: GraphStore, targets: Sequence[str]) -> dict[int, str]:
    """Why rows of a store cannot be used: all reasons but those that speak of a target that is not asked for."""
    about_targets = tuple(f"target {target!r} " for target in targets)
    return {row: why for row, why in store.errors.items() if store.sizes[row] == 0 or why.startswith(about_targets)}


def _reject_unlabelled(targets: np.ndarray, rejected: dict[int, str]) -> dict[int, str]:
    """The rejected rows, and those without any label. ``targets``: ``float64 [R, T]``."""
    unlabelled = np.flatnonzero(np.isnan(targets).all(axis=1)).tolist()
    return rejected | {row: _UNLABELLED for row in unlabelled if row not in rejected}


def _usable(rows: int, rejected: dict[int, str]) -> np.ndarray:
    """``bool [rows]``: which are not rejected."""
    usable = np.ones(rows, dtype=bool)
    usable[list(rejected)] = False
    return usable


def _numbers_of(item: Data, row: int) -> np.ndarray:
    """``float64 [T]``, the targets of a graph; one nan where it has none."""
    y = getattr(item, "y", None)
    import torch  # tables need it not

    try:
        return np.array([np.nan]) if y is None else torch.as_tensor(y).detach().cpu().numpy().astype(float).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"y of the graph at index {row} holds no numbers: {y!r}"[:200]) from None


def pyg_source(data: Iterable[Data], targets: Sequence[str] | None = None, config: DataConfig | None = None) -> Source:
    """Labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``.

    Args:
        data: each with ``x``, ``edge_index``, ``edge_attr`` as :meth:`MolGraph.to_pyg` gives them,
            and ``y`` of T numbers, nan where unknown. Atoms keep their order.
        targets: T names; y0, y1, ... when not given (y for one).
        config: what the user said of the targets.

    Raises:
        InputError: if no graph has targets, or their number differs.
    """
    from graphslice.chem.molecule import NO_GRAPH, MoleculeError
    from graphslice.data.pyg import from_pyg

    graphs: list[MolGraph] = []
    rejected: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        rows.append(_numbers_of(item, row))
        try:
            graphs.append(from_pyg(item))
        except MoleculeError as reason:
            graphs.append(NO_GRAPH)
            rejected[row] = str(reason)
    widths = sorted({len(row) for row in rows})
    if not rows:
        raise InputError("the PyG dataset is empty")
    if len(widths) > 1:
        raise InputError(f"the graphs of the PyG dataset have different numbers of targets: {widths}")
    values = np.stack(rows)
    values[np.isinf(values)] = np.nan
    rejected = _reject_unlabelled(values, rejected)
    if len(rejected) == len(rows):
        raise InputError(f"no graph of the PyG dataset can be used; the first: {rejected[0]}")
    names = list(targets) if targets else ["y"] if widths == [1] else [f"y{i}" for i in range(widths[0])]
    if len(names) != widths[0]:
        raise InputError(f"{len(names)} target names for {widths[0]} targets: {json.dumps(names)}")
    tasks = tasks_of_numbers(values, names, config or DataConfig(), "the PyG dataset")
    return Source("pyg", [], values, tasks, rejected, graphs=graphs)
