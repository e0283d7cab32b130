"""Loaders of labelled datasets: the demo set, tables, data frames, preprocessed datasets, OGB's PCQM4M-LSC and PyG
(inverse: :meth:`MolGraph.to_pyg`). torch and PyG are imported where they are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rdkit import Chem

from graphslice.chem.descriptors import feature_column_names
from graphslice.chem.molecule import EMPTY_GRAPH, MolGraph, check_graph, smiles_to_graph
from graphslice.chem.parse import MoleculeError, mol_to_smiles
from graphslice.config import MOLECULE, DataConfig, join_names
from graphslice.data.cells import plain_numbers
from graphslice.data.columns import (
    TableColumns,
    check_feature_columns,
    find_columns,
    label_names,
    require_column,
    target_names,
)
from graphslice.data.dataset import LabelledDataset, check_usable, rename_tasks, unlabelled_rows
from graphslice.data.formats import split_sheet
from graphslice.data.labels import Labels
from graphslice.data.long import widen
from graphslice.data.ogb import OGB_FOLDERS, OGB_NOTES, OGB_TARGET, load_pcqm4m
from graphslice.data.rows import parse_chunks, parse_labels
from graphslice.data.splits import (
    SPLIT_METHODS,
    SPLITS,
    TRAIN_AND_VALID,
    encode_splits,
    present_splits,
    without_validation,
)
from graphslice.data.store import STORE_SUFFIX, GraphStore
from graphslice.data.tables import Rows, number_array, open_table, reject_other_atom_order, text_array, texts
from graphslice.data.targets import infer_target, infer_tasks
from graphslice.errors import InputError, check_choice, first_line, nearest, quoted_list
from graphslice.feature_dims import BOND_DIMS
from graphslice.system.machine import DEMO_CSV
from graphslice.tasks import TASK_KINDS, Task, parse_per_target, regression_tasks

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data


def load_dataset(config: DataConfig, tasks: Sequence[Task] | None = None, data: Any = None) -> LabelledDataset:
    """Load the labelled dataset of a configuration, or ``data`` in its place: a data frame, or PyG graphs with ``y``;
    ``tasks`` of its targets are inferred if they are None."""
    if data is not None:
        return dataset_from_frame(data, config, tasks) if is_frame(data) else dataset_from_pyg(data, config, tasks)
    if config.dataset in OGB_FOLDERS:
        return _dataset_from_ogb(config)
    path = dataset_path(config.dataset)
    if path.name.lower().endswith(STORE_SUFFIX):
        return dataset_from_store(GraphStore.open(path), config, tasks)
    if config.valid_file or config.test_file:
        return _dataset_from_files(config, tasks)
    return dataset_from_table(path, config, tasks)


def _check_settings(name: str, config: DataConfig, split_values: Sequence[str] = ()) -> None:
    """Raise :class:`InputError` for settings of tables that a dataset of another kind does not have."""
    for option in ("weight_column", "id_column", "long", "valid_file", "test_file"):
        if getattr(config, option):
            raise InputError(f"data.{option} needs a table of molecules, which {name} is not: leave it out")
    check_choice(f"data.level of {name}", config.level, [MOLECULE])
    check_choice(f"data.split of {name}", config.split, [None, *SPLIT_METHODS, *split_values])


def _dataset_from_files(config: DataConfig, tasks: Sequence[Task] | None) -> LabelledDataset:
    """Combine a training table with separate tables of the validation set, the test set, or both."""
    split_files = {split: file for split, file in (("valid", config.valid_file), ("test", config.test_file)) if file}
    train_config = replace(config, valid_file=None, test_file=None)
    parts = [dataset_from_table(dataset_path(config.dataset), train_config, tasks)]
    splits = [parts[0].split if parts[0].splits else np.zeros(len(parts[0]), np.int8)]
    targets = join_names(parts[0].target_names)
    for split, file in split_files.items():
        if split in (parts[0].splits or {}):
            raise InputError(
                f"{config.dataset} already has {split} rows: leave out data.{split}_file, or give data.split random"
            )
        # A split column of this file is ignored, because the whole file is one split.
        data = replace(train_config, dataset=file, targets=targets, split="random")
        parts.append(dataset_from_table(dataset_path(file), data, parts[0].tasks))
        splits.append(np.full(len(parts[-1]), SPLITS.index(split), np.int8))
    notes = tuple(f"{part.name}: {note}" for part in parts for note in part.notes)
    whole = LabelledDataset.join([replace(part, split=split) for part, split in zip(parts, splits, strict=True)])
    return replace(whole, notes=notes)


def dataset_path(dataset: str) -> Path:
    """Return the path of a dataset other than OGB's."""
    path = DEMO_CSV if dataset == "demo" else Path(dataset)
    if dataset != "demo" and not path.exists() and path.suffix == "":
        names = ["demo", *OGB_FOLDERS]
        raise InputError(
            f"unknown dataset {dataset!r}{nearest(dataset, names)}: give {', '.join(names)}, the path of a CSV, TSV, "
            "Excel, Parquet or SDF file, of a folder of such files, or of a preprocessed dataset of graphslice "
            "featurize"
        )
    return path


def is_dataset_name(dataset: str) -> bool:
    """True if ``dataset`` is the name of a built-in dataset, even if a folder has the same name."""
    return dataset in ("demo", *OGB_FOLDERS)


def absolute_dataset(dataset: str) -> str:
    """Return the absolute path of a dataset; names of built-in datasets stay unchanged."""
    path = Path(dataset)
    return dataset if is_dataset_name(dataset) or not split_sheet(path)[0].exists() else str(path.resolve())


def _dataset_from_ogb(config: DataConfig) -> LabelledDataset:
    _check_settings(config.dataset, config, [TRAIN_AND_VALID])
    if config.split in SPLIT_METHODS or config.folds is not None:
        raise InputError(f"{config.dataset} always uses OGB's split: leave out data.split and data.folds")
    check_choice("data.targets", config.targets, [None, OGB_TARGET])
    for column in feature_column_names(config.descriptors):
        require_column(column, [], config.dataset)
    smiles, gaps, splits = load_pcqm4m(config.dataset, config.root)
    labels, split = Labels.of_molecules(gaps[:, None]), encode_splits(splits, len(smiles))
    split = without_validation(split) if config.split == TRAIN_AND_VALID else split
    tasks, notes = regression_tasks([OGB_TARGET]), OGB_NOTES[config.dataset]
    return LabelledDataset(config.dataset, smiles, labels, tasks, split=split, notes=notes)


def dataset_from_table(path: Path, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a CSV, TSV, Excel, Parquet or SDF file, or of a folder of such files."""
    name = config.dataset
    if config.level != MOLECULE:
        reject_other_atom_order(path)
    with open_table(path) as table:
        dataset = dataset_from_chunks(table.columns, table.chunks, config, name, tasks)
    return replace(dataset, notes=(*table.notes, *dataset.notes))


def dataset_from_chunks(
    names: Sequence[str], chunks: Iterable[Rows], config: DataConfig, name: str, tasks: Sequence[Task] | None
) -> LabelledDataset:
    """Load the labelled molecules of all chunks, at least one, of a table; ``tasks`` as in :func:`load_dataset`."""
    notes: list[str] = []
    if config.long:
        rows, config, notes = widen(names, chunks, config, name)
        names, chunks = rows.table.column_names, [rows]
    columns = find_columns(names, config, name, SPLIT_METHODS)
    chunks = list(chunks)
    malformed = [reason for rows in chunks for reason in rows.faults.values()]
    if len(malformed) == sum(map(len, chunks)):
        raise InputError(f"{name}: no row can be read; the first: {malformed[0]}")
    written, chunks = chunks, [plain_numbers(rows, columns.decimal) for rows in chunks]
    if not columns.targets:
        columns = replace(columns, targets=[infer_target(chunks, columns, config, name)])
    tasks = rename_tasks(columns.targets, tasks)
    tasks = tasks or infer_tasks(chunks, columns.targets, config, name, columns.smiles)
    columns = replace(columns, tasks=tuple(tasks))
    dataset = LabelledDataset.join(list(parse_chunks(chunks, columns, name)))
    if dataset.columns is not None:
        check_feature_columns(dataset.columns, columns.features, name)
    return replace(
        dataset,
        name=name,
        tasks=tasks,
        smiles_column=columns.smiles,
        faults=unlabelled_rows(dataset.all_labels) | dataset.faults,
        notes=(*notes, *columns.notes()),
        identifiers={
            column: [text for chunk in written for text in texts(chunk.table.column(column))]
            for column in columns.identifiers
        },
    )


def dataset_from_frame(frame: Any, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load a data frame as a file of the same cells; ``table`` has the used columns, and can be saved as such."""
    if config.valid_file or config.test_file:
        raise InputError(f"data.valid_file and data.test_file do not go with {NAME}: give it a column split instead")
    table = as_table(frame)
    check_usable(NAME, len(table), {})
    columns = find_columns(table.column_names, config, NAME, SPLIT_METHODS)
    reject_molecules(frame, columns.smiles, config.level)
    dataset = dataset_from_chunks(table.column_names, [Rows(table)], config, NAME, tasks)
    used = [columns.smiles, *(columns.long or dataset.target_names), *filter(None, [columns.split, columns.weights])]
    used += [*columns.features, *dataset.identifiers]
    return replace(dataset, table=table.select(list(dict.fromkeys(used))))


#: Names of a data frame and of PyG graphs in messages.
NAME, PYG_NAME = "the data frame", "the PyG dataset"
_ARROW = pa.Table | pa.RecordBatch

#: Reason for rejecting RDKit molecules as input for atom- and bond-level targets.
NO_ATOM_ORDER = (
    "atom- and bond-level values are in the atom order of a SMILES, and these are RDKit molecules: give SMILES, such "
    "as Chem.MolToSmiles(mol), with the values in the order of Chem.MolFromSmiles of that SMILES"
)


def is_frame(value: object) -> bool:
    """True for a pandas or polars data frame, or an Arrow table or batch; checked without importing them."""
    kind = type(value)
    return hasattr(kind, "columns") and any(hasattr(kind, name) for name in ("iloc", "to_pandas"))


def column_names(frame: Any) -> list[str]:
    """Return the column names of a data frame of pandas, polars or Arrow."""
    return [str(name) for name in (frame.schema.names if isinstance(frame, _ARROW) else frame.columns)]


def as_table(frame: Any, indices: Sequence[int] | None = None) -> pa.Table:
    """Convert a data frame, or the columns of ``indices``, to an Arrow table in row order, without the index."""
    names = column_names(frame)
    indices = range(len(names)) if indices is None else indices
    if not hasattr(frame, "iloc"):
        table = frame if isinstance(frame, _ARROW) else frame.to_arrow()
        columns = [_decoded(table.column(index)) for index in indices]
    else:
        columns = [_cells(frame.iloc[:, index]) for index in indices]
    return pa.table(columns, names=[names[index] for index in indices])


def _decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _cells(column: Any) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas column; values of mixed types, or of types that Arrow lacks, become texts."""
    try:
        return _decoded(pa.array(column, from_pandas=True))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        cells = zip(column.tolist(), column.isna().tolist(), strict=True)
        texts = ["" if missing else _text(value) for value, missing in cells]
        return pa.array([text.encode(errors="replace").decode() for text in texts], pa.string())


def _text(value: object) -> str:
    try:
        return mol_to_smiles(value) if isinstance(value, Chem.Mol) else str(value)
    except MoleculeError:
        return ""


def reject_molecules(frame: Any, smiles: str, level: str) -> None:
    """Raise :class:`InputError` for RDKit molecules of another ``level``, whose atom order is not that of a SMILES."""
    is_read = level != MOLECULE and hasattr(frame, "iloc")
    if is_read and any(isinstance(cell, Chem.Mol) for cell in frame.iloc[:, column_names(frame).index(smiles)]):
        raise InputError(NO_ATOM_ORDER)


def dataset_from_store(store: GraphStore, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load the labelled molecules of a preprocessed dataset made by ``graphslice featurize`` or ``pretrain``."""
    known = list(store.info.targets)
    names, auxiliary = _store_target_names(store, config)
    columns = feature_column_names(config.descriptors)
    numbers = without_validation(store.split) if config.split == TRAIN_AND_VALID else store.split
    present, of_ogb = present_splits(numbers), [TRAIN_AND_VALID] * (store.info.source in OGB_FOLDERS)
    _check_settings(store.name, config, ["split", *of_ogb] if present else [])
    targets, stored = dict(zip(known, store.targets.T, strict=True)), {task.name: task for task in store.info.tasks}
    rows = Rows(pa.table({name: _stored_cells(targets[name], stored.get(name)) for name in names}))
    if (tasks := rename_tasks(names, tasks)) is None:
        requested = parse_per_target(config.task, names, TASK_KINDS, "data.task")
        tasks_of = {name: task for name, task in stored.items() if name not in requested}
        inferred = infer_tasks([rows], [name for name in names if name not in tasks_of], config, store.name)
        tasks_of |= {task.name: task for task in inferred}
        tasks = [tasks_of[name] for name in names]
    labels, faults = parse_labels(rows, TableColumns("", names, tasks=tuple(tasks)))
    is_pcqm4m = store.info.source in OGB_FOLDERS and config.split not in SPLIT_METHODS
    own = tuple(f"target {name!r} " for name in names)
    if not is_pcqm4m:  # OGB does not publish the labels of its test sets
        faults = unlabelled_rows(labels) | faults
    faults |= {r: reason for r, reason in store.errors.items() if store.sizes[r] == 0 or reason.startswith(own)}
    return LabelledDataset(
        store.info.source if is_pcqm4m else store.name,
        store.smiles,
        labels,
        tasks,
        faults,
        numbers if config.split not in SPLIT_METHODS and present else None,
        store=store,
        columns=store.descriptors(np.arange(len(store)), columns) if columns else None,
        auxiliary={level: store.atom_bond_labels(level, names) for level, names in auxiliary.items()},
        notes=OGB_NOTES.get(store.info.source, ()),
    )


def _store_target_names(store: GraphStore, config: DataConfig) -> tuple[list[str], dict[str, list[str]]]:
    """Return the requested molecule-level targets, and by level the requested auxiliary atom- and bond-level ones."""
    known, atom_bond_targets = list(store.info.targets), store.info.atom_bond_targets
    available = [*known, *(name for names in atom_bond_targets.values() for name in names)]
    requested = target_names(config.targets, available) or available
    for name in requested:
        require_column(name, available, store.name)
    auxiliary = {level: [name for name in names if name in requested] for level, names in atom_bond_targets.items()}
    names = [name for name in requested if name in known]
    if not names:
        raise InputError(
            f"{store.name} has the molecule-level targets {quoted_list(known)}: name one of them with data.targets, or "
            "run graphslice featurize with --targets"
        )
    return names, {level: auxiliary_names for level, auxiliary_names in auxiliary.items() if auxiliary_names}


def _stored_cells(labels: np.ndarray, task: Task | None) -> pa.Array:
    """Return the cells of a target of a store: numbers, or names of the classes of its task."""
    if task is None:
        return number_array(labels)
    return text_array(task.classes).take(number_array(np.nan_to_num(labels).astype(np.int64), ~np.isnan(labels)))


def from_pyg(data: Data) -> MolGraph:
    """Convert a ``Data`` with ``x``, ``edge_index``, ``edge_attr`` of OGB's features; the order of atoms is kept.
    MoleculeError: no atoms, invalid features, bonds in one direction, or elements unlike its ``smiles``."""
    from torch_geometric.utils import is_undirected

    edges, features = data.edge_index, data.edge_attr
    try:
        if edges is None:  # a single atom
            edges, features = data.x.new_empty((2, 0)).long(), data.x.new_empty((0, len(BOND_DIMS)))
        forward = edges[0] < edges[1]
        graph = check_graph(MolGraph(*map(_integers, (data.x, edges[:, forward].T, features[forward]))))
        is_whole = 2 * len(graph.bonds) == edges.shape[1] and is_undirected(edges, features, len(graph.atoms))
    except (AttributeError, TypeError, IndexError, RuntimeError) as error:
        raise MoleculeError(f"x, edge_index and edge_attr are not OGB's: {first_line(error)}") from None
    if len(graph.atoms) == 0:
        raise MoleculeError("the graph has no atoms")
    if not is_whole:
        raise MoleculeError("edge_index must contain every bond once in each direction, with the same features")
    if isinstance(smiles := getattr(data, "smiles", None), str):
        _check_elements(graph.atoms, smiles)
    return graph


def _integers(tensor: torch.Tensor) -> np.ndarray:
    values = tensor.detach().cpu().numpy()
    return values.astype(np.int64) if np.array_equal(values, np.rint(values)) else values


def _check_elements(atoms: np.ndarray, smiles: str) -> None:
    """Reject graphs of PyG's ``from_smiles``, which encodes elements differently from OGB but stores the SMILES."""
    try:
        expected = smiles_to_graph(smiles, max_atoms=len(atoms)).atoms
    except MoleculeError:
        return
    if not np.array_equal(np.sort(atoms[:, 0]), np.sort(expected[:, 0])):
        raise MoleculeError("the features are not OGB's: the elements differ from those of the graph's SMILES")


def pyg_labels(data: Data) -> np.ndarray:
    """Return the labels ``y`` of one molecule, ``float64 [T]``, nan where unknown."""
    import torch

    y = getattr(data, "y", None)
    return np.array([np.nan] if y is None else torch.as_tensor(y).tolist(), float).reshape(-1)


def dataset_from_pyg(data: Iterable[Data], config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """Load labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``: T numbers, nan
    where unknown, named y0, y1, ... (y for a single target) if not given."""
    _check_settings(PYG_NAME, config)
    graphs: list[MolGraph] = []
    faults: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        rows.append(pyg_labels(item))
        try:
            graphs.append(from_pyg(item))
        except MoleculeError as reason:
            graphs.append(EMPTY_GRAPH)
            faults[row] = str(reason)
    values = np.stack(rows)
    check_usable(PYG_NAME, len(rows), unlabelled_rows(Labels.of_molecules(values)) | faults)
    names = label_names(target_names(config.targets, ()), values.shape[1], PYG_NAME)
    columns = Rows(pa.table([number_array(column) for column in values.T], names))
    tasks = rename_tasks(names, tasks) or infer_tasks([columns], names, config, PYG_NAME)
    labels, invalid = parse_labels(columns, TableColumns("", names, tasks=tuple(tasks)))
    return LabelledDataset("pyg", [], labels, tasks, unlabelled_rows(labels) | invalid | faults, graphs=graphs)
