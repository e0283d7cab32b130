"""Inputs of a model in Python: molecules in all accepted forms, and feature columns."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rdkit import Chem

from graphslice.chem.descriptors import descriptor_kinds, feature_column_names
from graphslice.chem.molecule import MolArrays, MolGraph, check_graph
from graphslice.chem.parse import MoleculeError, mol_to_smiles
from graphslice.config import ATOM, MOLECULE, RunConfig
from graphslice.data.batches import batch_arrays
from graphslice.data.columns import TableColumns, as_descriptors, check_unique, find_smiles_column, match_column
from graphslice.data.featurize import Parsed, parse, with_store
from graphslice.data.labels import Labels
from graphslice.data.loaders import (
    NAME,
    NO_ATOM_ORDER,
    as_table,
    column_names,
    from_pyg,
    is_frame,
    pyg_labels,
    reject_molecules,
)
from graphslice.data.store import GraphStore
from graphslice.data.tables import READABLE, Rows, number_array
from graphslice.errors import InputError, quoted_list, shown

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from graphslice.batch import GraphBatch

#: Key of the configuration in the metadata of an exported file, as JSON.
CONFIG_KEY = "graphslice.config"
#: Numbers by column name, None or nan where unknown.
Columns: TypeAlias = Mapping[str, Sequence[float | None] | np.ndarray]


def as_feature_columns(names: Sequence[str], columns: Columns, rows: int) -> dict[str, np.ndarray]:
    """Return ``float32 [R]`` by name, nan where unknown; InputError if one is missing or not of length ``rows``."""
    if missing := [name for name in names if name not in columns]:
        raise InputError(
            f"the model needs the feature column{'s' * (len(missing) > 1)} {quoted_list(missing)}: "
            'give a table that has it, or in Python predict(molecules, columns={"name": values})'
        )
    converted = {}
    for name in names:
        numbers = np.atleast_1d(np.array(columns[name], dtype=np.float64))
        if numbers.shape != (rows,):
            raise InputError(f"the column {name!r} has shape {list(numbers.shape)}, but there are {rows} molecules")
        converted[name] = as_descriptors([numbers])[:, 0]
    return converted


def as_molecules(molecules: Any, level: str = MOLECULE) -> list[Any]:
    """Convert one or many SMILES, RDKit molecules, :class:`MolGraph` or PyG ``Data`` to a list: a SMILES, a graph or a
    MoleculeError each. InputError: no molecules, or RDKit's, which have no order of atoms, at another ``level``."""
    if isinstance(molecules, str) and molecules.lower().endswith(READABLE):
        raise InputError(f"{molecules} is a file: give a data frame of its rows, or use graphslice predict")
    if isinstance(molecules, str | Chem.Mol | MolGraph):
        molecules = [molecules]
    if isinstance(molecules, np.ndarray):
        if molecules.ndim > 1 and molecules.size != len(molecules):
            raise InputError(f"an array of shape {list(molecules.shape)} is not a list of molecules: give one column")
        molecules = molecules.reshape(-1)
    if isinstance(molecules, bytes | bytearray | Mapping) or not isinstance(molecules, Iterable):
        raise InputError(
            f"{shown(molecules)} ({type(molecules).__name__}) is not a molecule: give SMILES, RDKit molecules or "
            "graphs, one or many, or a data frame"
        )
    listed = list(each_molecule(molecules))
    if level != MOLECULE and any(isinstance(one, Chem.Mol) for one in listed):
        raise InputError(NO_ATOM_ORDER)
    return [_molecule(one) for one in listed]


def frame_rows(
    frame: Any, smiles: str | None = None, features: Sequence[str] = (), level: str = MOLECULE
) -> tuple[Rows, str]:
    """Read the SMILES of a data frame, and those of the feature columns that it has; also return the name of the SMILES
    column: ``smiles`` if it exists, else a single column or one detected by its name. InputError as of
    :func:`as_molecules`."""
    names = column_names(frame)
    column = names[0] if len(names) == 1 else find_smiles_column(names, None, NAME, smiles)
    found = {feature: match for feature in features if (match := match_column(feature, names)) is not None}
    check_unique(names, used := [column, *found.values()], NAME)
    reject_molecules(frame, column, level)
    table = as_table(frame, [names.index(name) for name in used])
    return Rows(table.rename_columns([column, *found])), column


def _molecule(value: Any) -> Any:
    """Return a SMILES (empty for missing values), a graph, or a :class:`MoleculeError`."""
    if isinstance(value, str | MoleculeError) or is_graph(value):
        return value
    if hasattr(value, "as_py"):  # Arrow scalar
        return _molecule(value.as_py())
    if isinstance(value, Chem.Mol):
        try:
            return mol_to_smiles(value)
        except MoleculeError as error:
            return error
    missing = value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and np.isnan(value))
    return "" if missing else MoleculeError(f"{shown(value)} ({type(value).__name__}) is not a SMILES")


def is_graph(molecule: object) -> bool:
    """True for a :class:`MolGraph` or a PyG ``Data``, not a PyG dataset; does not import PyG, which takes seconds."""
    return isinstance(molecule, MolGraph) or hasattr(type(molecule), "edge_index")


def each_molecule(molecules: Iterable) -> Iterator:
    """Yield molecules one by one, also those of PyG batches."""
    for item in [molecules] if is_graph(molecules) else molecules:
        yield from item.to_data_list() if hasattr(item, "to_data_list") else [item]


def to_store(inputs: Any, columns: Columns | None, config: RunConfig, ranges: np.ndarray | None = None) -> GraphStore:
    """Featurize what :func:`as_molecules` accepts, or a data frame, for a model; invalid molecules keep an error
    message. InputError as there, or if feature columns are missing."""
    level, descriptors = config.model.level, config.data.descriptors
    features, kinds = feature_column_names(descriptors), descriptor_kinds(descriptors)
    graphs: dict[int, MolGraph] = {}
    if is_frame(inputs):
        in_frame = [name for name in features if name not in (columns or {})]
        rows, smiles = frame_rows(inputs, config.data.smiles_column, in_frame, level)
    else:
        (rows, graphs), smiles = _read_molecules(as_molecules(inputs, level), config.graph.max_atoms), "smiles"
    if kinds and graphs:
        raise InputError(
            f"the model reads {', '.join(kinds)}, which are computed from SMILES: give SMILES instead of graphs"
        )
    given = as_feature_columns([f for f in features if f not in rows.table.column_names], columns or {}, len(rows))
    for name, values in given.items():
        rows = replace(rows, table=rows.table.append_column(name, number_array(values)))
    read = TableColumns(smiles, features=tuple(features), decimal=config.data.decimal, ranges=ranges)
    parsed = parse(rows.smiles(smiles), config.graph, kinds=kinds, level=level)
    store = with_store(rows, read, _with_graphs(parsed, graphs, level) if graphs else parsed, level)[1]
    for note in read.notes():
        warnings.warn(note, stacklevel=4)
    return store


def to_valid_store(molecules: Any, columns: Columns | None, config: RunConfig) -> GraphStore:
    """Featurize molecules as :func:`to_store`; raises InputError for one that is invalid, or if there are none."""
    store = to_store(molecules, columns, config)
    if store.errors:
        row = min(store.errors)
        raise InputError(f"row {row} of the molecules cannot be predicted: {store.errors[row]}")
    if not len(store):
        raise InputError("there are no molecules: at least one is needed")
    return store


def collate_molecules(molecules: Any, config: RunConfig) -> GraphBatch:
    """Collate molecules for a :class:`~graphslice.nn.GraphTransformer`, in a training loop of your own.

    Args:
        molecules: B SMILES, RDKit molecules, :class:`MolGraph` or PyG ``Data`` with OGB features, or a PyG ``Batch``.
        config: the configuration of the network, such as :attr:`Predictor.config` of a trained one.

    Returns:
        The batch, on the CPU. Its ``targets`` are the labels ``y`` of PyG graphs that all have one: float32 ``[B, T]``,
        nan where unknown; else None, and for an atom- or bond-level network, which predicts in the order of the SMILES.

    Raises:
        InputError: if a molecule is invalid (the message names its row), or the network reads columns of a table.
    """
    from graphslice.batch import GraphBatch

    listed = as_molecules(molecules, config.model.level)
    store, labels = to_valid_store(listed, None, config), None
    if config.model.level == MOLECULE and all(getattr(one, "y", None) is not None for one in listed):
        labels = Labels.of_molecules(np.stack([pyg_labels(one) for one in listed]))
    return GraphBatch.from_arrays(_arrays_of_batch(store, config, labels))


def onnx_inputs(session: InferenceSession, molecules: Any, *, columns: Columns | None = None) -> dict[str, np.ndarray]:
    """Featurize molecules for a network that ``graphslice export`` wrote.

    Args:
        session: the file, opened by ``onnxruntime.InferenceSession``; ``session.run(None, inputs)`` predicts.
        molecules, columns: as in :meth:`Predictor.predict`.

    Returns:
        The inputs of the network by name: one batch of all molecules, padded to the largest. They are the tensors of a
        :class:`~graphslice.batch.GraphBatch`, with ``path_types`` in int32; atoms or bonds that are predicted are in
        the order of the SMILES.

    Raises:
        InputError: if the file is not one of GraphSlice, or a molecule is invalid (the message names its row).
    """
    metadata = session.get_modelmeta().custom_metadata_map
    if CONFIG_KEY not in metadata:
        raise InputError("the ONNX file holds no settings of GraphSlice: write it with graphslice export")
    return network_inputs(RunConfig.from_dict(json.loads(metadata[CONFIG_KEY])), molecules, columns)


def network_inputs(config: RunConfig, molecules: Any, columns: Columns | None = None) -> dict[str, np.ndarray]:
    """Featurize molecules for the networks of a configuration, as :func:`onnx_inputs`."""
    arrays = _arrays_of_batch(to_valid_store(molecules, columns, config), config)
    del arrays["rows"]
    arrays["path_types"] = arrays["path_types"].astype(np.int32)
    return arrays


def _arrays_of_batch(store: GraphStore, config: RunConfig, labels: Labels | None = None) -> dict[str, np.ndarray]:
    """Collate all molecules; atoms or bonds that are predicted are in the order of the SMILES."""
    rows = np.arange(len(store))
    arrays: dict[str, np.ndarray] = batch_arrays(store, rows, targets=labels, **config.collate_settings)
    if config.model.level != MOLECULE:
        index = arrays["atom_bond_index"]
        first = np.searchsorted(index[:, 0], index[:, 0])  # atom or bond of the same molecule
        arrays["atom_bond_index"] = index[first + store.order(rows)[:, 0]]
    return arrays


def smiles_rows(values: Iterable[Any], numbers: Mapping[str, np.ndarray] = MappingProxyType({})) -> Rows:
    """Return rows of a column ``smiles``, and columns of ``numbers``; a value that is no text is a fault of its row."""
    molecules = [_molecule(value) for value in values]
    faults = {row: str(one) for row, one in enumerate(molecules) if isinstance(one, MoleculeError)}
    return Rows(Rows.of_smiles([one if isinstance(one, str) else "" for one in molecules], numbers).table, faults)


def _read_molecules(molecules: Sequence[Any], max_atoms: int) -> tuple[Rows, dict[int, MolGraph]]:
    """Return the SMILES among molecules of :func:`as_molecules`, with faults, and the graphs by row."""
    rows, graphs = smiles_rows(molecules), {}
    for row, molecule in enumerate(molecules):
        if is_graph(molecule):
            try:
                graphs[row] = _check_input_graph(molecule, max_atoms)
            except MoleculeError as error:
                rows.faults[row] = str(error)
    return rows, graphs


def _with_graphs(parsed: Parsed, graphs: Mapping[int, MolGraph], level: str) -> Parsed:
    """Put graphs in the place of rows without a SMILES; their atoms and bonds keep their order."""
    arrays, reasons, order, descriptors = parsed
    molecules = [graphs.get(row) or arrays.graph(row) for row in range(len(arrays))]
    reasons = [None if row in graphs else reason for row, reason in enumerate(reasons)]
    if level != MOLECULE:
        written = np.split(order, (arrays.atom_ptr if level == ATOM else arrays.bond_ptr)[1:-1])
        for row, graph in graphs.items():
            size = graph.num_atoms if level == ATOM else graph.num_bonds
            written[row] = np.stack([np.arange(size, dtype=order.dtype)] * 2, axis=1)
        order = np.concatenate([order[:0], *written])
    return MolArrays.from_graphs(molecules), reasons, order, descriptors


def _check_input_graph(molecule: Any, max_atoms: int) -> MolGraph:
    molecule = check_graph(molecule) if isinstance(molecule, MolGraph) else from_pyg(molecule)
    if molecule.num_atoms == 0:
        raise MoleculeError("the graph has no atoms")
    if molecule.num_atoms > max_atoms:
        raise MoleculeError(f"{molecule.num_atoms} atoms, more than the limit of {max_atoms}")
    return molecule
