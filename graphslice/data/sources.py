"""Labelled molecules from wherever they are: the demo set, a table, OGB's PCQM4M-LSC, PyG."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from graphslice.config import DataConfig, RunConfig
from graphslice.data import splits
from graphslice.data.ogb_lsc import FOLDERS, TARGET, load_pcqm4m
from graphslice.data.rows import Rows
from graphslice.data.store import NO_PART, PARTS, ROWS, GraphStore
from graphslice.data.tables import CSV_SUFFIXES, PARQUET_SUFFIXES, TSV_SUFFIXES, decoded, open_table, texts
from graphslice.errors import InputError, nearest
from graphslice.resources import DEMO_CSV

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphslice.chem import MolGraph

#: Names of SMILES columns that need not be given, in the order they are looked for.
SMILES_COLUMNS = ("smiles", "canonical_smiles", "smi", "mol", "structure")
# Cells that say that there is no value.
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>")
STORE_SUFFIX = ".arrow"
TABLE_SUFFIXES = CSV_SUFFIXES + TSV_SUFFIXES + PARQUET_SUFFIXES


@dataclass
class Source:
    """Labelled molecules, row by row as their source has them.

    Attributes:
        name: demo, pcqm4m, pcqm4mv2, the file's path, or pyg.
        smiles: one text a row; empty where ``graphs`` stand instead.
        targets: ``float64 [R, T]`` in the user's unit, nan where unknown.
        target_names: T names.
        rejected: reason by row, for rows whose labels are of no use.
        split: rows of each part, where the source says so; else None.
        graphs: molecules that are graphs already (without atoms where rejected), or None.
        store: molecules that are featurized already, or None.
    """

    name: str
    smiles: list[str]
    targets: np.ndarray
    target_names: list[str]
    rejected: dict[int, str] = field(default_factory=dict)
    split: splits.Split | None = None
    graphs: list[MolGraph] | None = None
    store: GraphStore | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def is_pcqm4m(self) -> bool:
        """Whether OGB's evaluator judges this data."""
        return self.name in FOLDERS

    def fingerprint(self) -> str:
        """A hash of molecules, labels and split, to notice that a run's data has changed."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes())
        digest.update("\n".join(self.smiles).encode(errors="surrogateescape"))
        for graph in self.graphs or ():
            digest.update(graph.atoms.tobytes() + graph.bonds.tobytes())
        if self.store is not None:
            digest.update(self.store.info.fingerprint.encode())
        for part, rows in (self.split or {}).items():
            digest.update(part.encode() + rows.tobytes())
        return digest.hexdigest()[:16]

    def pieces(self) -> Iterator[Rows]:
        """The rows as :func:`~graphslice.data.featurize.build_store` takes them."""
        split = split_numbers(len(self), self.split)
        for begin in range(0, len(self), ROWS):
            part = slice(begin, begin + ROWS)
            yield Rows(self.smiles[part], self.targets[part], split[part], {})


def split_numbers(rows: int, split: splits.Split | None) -> np.ndarray:
    """``int8 [R]``, each row's part as a store numbers them."""
    numbers = np.full(rows, NO_PART, np.int8)
    for part, members in (split or {}).items():
        numbers[members] = PARTS.index(part)
    return numbers


def load_source(config: DataConfig) -> Source:
    """The labelled molecules that a configuration names.

    Raises:
        InputError: if they cannot be had, saying what is missing and what to do.
    """
    if config.dataset in FOLDERS:
        smiles, gaps, split = load_pcqm4m(config.dataset, config.root)
        if config.targets not in (None, TARGET):
            raise InputError(f"{config.dataset} has the one target {TARGET}, not {config.targets!r}")
        return Source(config.dataset, smiles, gaps[:, None], [TARGET], split=split)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return store_source(GraphStore.open(path), config)
    return table_source(read_table(path), config, config.dataset)


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
    return replace(config, data=data, model=replace(config.model, tasks=len(source.target_names)))


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


def store_source(store: GraphStore, config: DataConfig) -> Source:
    """The labelled molecules of a store that ``graphslice featurize`` made.

    Raises:
        InputError: if it has no labels, not those asked for, or no split column of that name.
    """
    names = list(store.info.targets)
    if not names:
        raise InputError(f"{store.name} has no labels: featurize with --targets to train on it")
    wanted = _target_names(config.targets, names) or names
    _check_unique(wanted, [], [], store.name)
    for name in wanted:
        if name not in names:
            raise InputError(f"{store.name} has no target {name!r}{nearest(name, names)}; it has {_listed(names)}")
    numbers = store.split
    has_split = bool((numbers != NO_PART).any())
    if config.split not in (None, "random") and not (config.split == "split" and has_split):
        raise InputError(
            f"{store.name} cannot be split by {config.split!r}: a store keeps only the split that it was made with "
            "(featurize with --split COLUMN), and no SMILES for a scaffold split; or give random"
        )
    targets = store.targets[:, [names.index(name) for name in wanted]]
    is_pcqm4m = store.info.source in FOLDERS
    # A label that is no number is of no interest where others are asked for.
    bad = tuple(f"target {name!r} " for name in wanted)
    rejected = {row: why for row, why in store.errors.items() if store.sizes[row] == 0 or why.startswith(bad)}
    for row in np.flatnonzero(np.isnan(targets).all(axis=1)) if not is_pcqm4m else ():
        rejected.setdefault(int(row), "no target value")
    split = None
    if config.split != "random" and has_split:
        usable = np.array([row not in rejected for row in range(len(store))], dtype=bool)
        split = {part: np.flatnonzero((numbers == n) & usable) for n, part in enumerate(PARTS) if (numbers == n).any()}
    name = store.info.source if is_pcqm4m else store.name
    return Source(name, [], targets, wanted, rejected, split, store=store)


def label_columns(path: Path, config: DataConfig) -> tuple[str, list[str], str | None]:
    """Which columns of a table hold the SMILES, the labels that ``config.targets`` names, and the split (if any).

    Raises:
        InputError: if the table cannot be read or has no such column.
    """
    if config.split in ("random", "scaffold"):
        raise InputError(f"a store keeps the split of a column; give --split {config.split} when you train on it")
    with open_table(path) as stream:
        column = find_smiles_column(stream.columns, config.smiles_column, str(path))
        targets = _target_names(config.targets, stream.columns)
        split = config.split or ("split" if "split" in stream.columns else None)
        _check_unique(targets, [column, *targets, *([split] if split else [])], stream.columns, path)
        for name in [*targets, *([split] if split else [])]:
            if name not in stream.columns:
                raise InputError(
                    f"{path} has no column {name!r}{nearest(name, stream.columns)}; it has {_listed(stream.columns)}"
                )
    return column, targets, split


def _target_names(text: str | None, columns: Sequence[str]) -> list[str]:
    if not text:
        return []
    return [text] if text in columns else _split_names(text)


def _check_unique(targets: list[str], used: list[str], columns: Sequence[str], name: object) -> None:
    if len(set(targets)) != len(targets):
        raise InputError(f"--targets names a column twice: {', '.join(targets)}")
    for column in used:
        if list(columns).count(column) > 1:
            raise InputError(f"{name} has two columns called {column!r}")


def labelled_rows(path: Path, columns: tuple[str, list[str], str | None]) -> Iterator[Rows]:
    """The rows of a table, read in pieces; the columns as of :func:`label_columns`.

    Raises:
        InputError: if the table cannot be read to its end, or a word of the split names no part.
    """
    first = 0
    with open_table(path) as stream:
        for piece in stream.pieces:
            yield labelled(piece, *columns, first=first)
            first += len(piece)


def labelled(piece: pa.Table, column: str, targets: list[str], split: str | None, first: int = 0) -> Rows:
    """A piece of a table as rows; labels that are no numbers are reasons to reject a row.

    ``first`` is the row of the table that the piece begins with.
    """
    smiles = texts(piece.column(column))
    values, rejected = _labels(_decoded_frame(piece.select(targets)), targets)
    numbers = np.full(len(smiles), NO_PART, np.int8)
    if split is not None:
        words = texts(piece.column(split), decoded)
        needed = np.ones(len(smiles), bool) if not targets else ~np.isnan(values).all(axis=1)
        needed[list(rejected)] = False
        rows = [row for row in range(len(smiles)) if needed[row] or splits.is_part(words[row])]
        numbers = split_numbers(len(smiles), splits.column_split(np.array(rows, np.int64), words, split, first))
    return Rows(smiles, values, numbers, rejected)


def _labels(table: pd.DataFrame, targets: list[str]) -> tuple[np.ndarray, dict[int, str]]:
    """``float64 [R, T]`` of the target columns, and the rows in which one of them is no number."""
    values = np.empty((len(table), len(targets)), dtype=np.float64)
    rejected: dict[int, str] = {}
    for t, column in enumerate(targets):
        numbers, unknown = _numbers(table[column])
        wrong = (np.isnan(numbers) & ~unknown) | np.isinf(numbers)
        for row in np.flatnonzero(wrong):
            rejected.setdefault(int(row), f"target {column!r} is not a finite number: {str(table[column][row])!r}")
        numbers[wrong] = np.nan
        values[:, t] = numbers
    return values, rejected


def read_table(path: Path) -> pd.DataFrame:
    """A CSV, TSV or Parquet file with at least one row. Cells of CSV and TSV are texts.

    Raises:
        InputError: if it is missing, empty, of another kind or damaged.
    """
    if path.is_file() and not path.name.lower().endswith(TABLE_SUFFIXES):
        raise InputError(
            f"{path}: GraphSlice reads labelled molecules from {', '.join(TABLE_SUFFIXES)} and {STORE_SUFFIX}"
        )
    with open_table(path) as stream:
        twice = [name for i, name in enumerate(stream.columns) if name in stream.columns[:i]]
        if twice:
            raise InputError(f"{path} has two columns called {twice[0]!r}")
        pieces = list(stream.pieces)
    return _decoded_frame(pa.concat_tables(pieces))


def _decoded_frame(piece: pa.Table) -> pd.DataFrame:
    table = piece.to_pandas(ignore_metadata=True)
    for name in table.columns:
        if len(table) and isinstance(table[name].iloc[0], bytes):
            table[name] = pd.Series([decoded(cell) for cell in table[name]], dtype=object)
    return table


def _numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """The values of a column, nan where there is no number, and which cells are empty."""
    empty = column.isna().to_numpy()
    if not pd.api.types.is_numeric_dtype(column):
        empty = empty | column.astype(str).str.strip().str.lower().isin(_NO_VALUE).to_numpy()
    numbers = pd.to_numeric(column.mask(empty), errors="coerce")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan, copy=True), empty


def table_source(table: pd.DataFrame, config: DataConfig, name: str) -> Source:
    """The labelled molecules of a table.

    Raises:
        InputError: for a missing column, or targets that are no numbers.
    """
    table = table.reset_index(drop=True)
    smiles_column = find_smiles_column(list(table.columns), config.smiles_column, name)
    split_column = _split_column(table, config, name)
    targets = _target_columns(table, config, {smiles_column, split_column}, name)
    values, rejected = _labels(table, targets)
    for t, column in enumerate(targets):
        if np.isnan(values[:, t]).all():
            given = np.flatnonzero(~_numbers(table[column])[1])
            if not len(given):
                raise InputError(f"{name}: the target {column!r} is empty in every row")
            example = str(table[column][given[0]])
            raise InputError(f"{name}: the target {column!r} is not numeric (its first value is {example!r})")
    for row in np.flatnonzero(np.isnan(values).all(axis=1)):
        rejected.setdefault(int(row), "no target value")
    source = Source(
        name,
        ["" if text is None or text != text else str(text) for text in table[smiles_column]],
        values,
        targets,
        rejected,
    )
    if split_column is not None:
        kept = np.array([row for row in range(len(table)) if row not in rejected], dtype=np.int64)
        source.split = splits.column_split(kept, table[split_column].tolist(), split_column)
    return source


def find_smiles_column(columns: Sequence[str], given: str | None, name: str) -> str:
    """The column of the SMILES: the given one, or the first with a usual name.

    Raises:
        InputError: if there is none.
    """
    if given is not None:
        if given not in columns:
            raise InputError(f"{name} has no column {given!r}{nearest(given, columns)}; it has {_listed(columns)}")
        return given
    by_name = {str(column).strip().lower(): column for column in reversed(columns)}
    for usual in SMILES_COLUMNS:
        if usual in by_name:
            return by_name[usual]
    raise InputError(
        f"{name}: which column holds the SMILES? Give it with --smiles-column; there are {_listed(columns)}"
    )


def _split_column(table: pd.DataFrame, config: DataConfig, name: str) -> str | None:
    if config.split is None:
        return "split" if "split" in table.columns else None
    if config.split in ("random", "scaffold"):
        return None
    if config.split not in table.columns:
        known = ["random", "scaffold", *table.columns]
        raise InputError(
            f"unknown split {config.split!r}{nearest(config.split, known)}: give random, scaffold, "
            f"or a column of {name}, which has {_listed(table.columns)}"
        )
    return config.split


def _target_columns(table: pd.DataFrame, config: DataConfig, taken: set[str | None], name: str) -> list[str]:
    if config.targets:
        targets = _target_names(config.targets, list(table.columns))
        for column in targets:
            if column not in table.columns:
                raise InputError(
                    f"{name} has no column {column!r}{nearest(column, table.columns)}; it has {_listed(table.columns)}"
                )
        if len(set(targets)) != len(targets):
            raise InputError(f"--targets names a column twice: {config.targets}")
        return targets
    others = [c for c in table.columns if c not in taken]
    numeric = [c for c in others if np.isfinite(_numbers(table[c])[0]).any()]
    if len(numeric) == 1:
        return numeric
    if not numeric and len(others) == 1:
        return others  # the caller says what is wrong with it
    raise InputError(f"{name}: which columns shall be predicted? Give them with --targets; there are {_listed(others)}")


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _listed(names: Iterable[object], most: int = 12) -> str:
    names = [repr(str(name)) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "none"


def pyg_source(data: Iterable[Data], targets: Sequence[str] | None = None) -> Source:
    """Labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``.

    Args:
        data: each with ``x``, ``edge_index``, ``edge_attr`` as :meth:`MolGraph.to_pyg` gives them,
            and ``y`` of T numbers, nan where unknown. Atoms keep their order.
        targets: T names; y0, y1, ... when not given (y for one).

    Raises:
        InputError: if no graph has targets, or their number differs.
    """
    from graphslice.chem.molecule import NO_GRAPH, MoleculeError
    from graphslice.data.pyg import from_pyg

    graphs: list[MolGraph] = []
    rejected: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        y = getattr(item, "y", None)
        rows.append(np.array([np.nan]) if y is None else y.detach().cpu().numpy().astype(np.float64).reshape(-1))
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
    for row in np.flatnonzero(np.isnan(values).all(axis=1)):
        rejected.setdefault(int(row), "no target value")
    if len(rejected) == len(rows):
        raise InputError(f"no graph of the PyG dataset can be used; the first: {rejected[0]}")
    names = list(targets) if targets else ["y"] if widths == [1] else [f"y{i}" for i in range(widths[0])]
    if len(names) != widths[0]:
        raise InputError(f"{len(names)} target names for {widths[0]} targets: {json.dumps(names)}")
    return Source("pyg", [], values, names, rejected, graphs=graphs)
