"""Inputs of a model in Python: molecules in all accepted forms, and feature columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from rdkit import Chem

from graphslice.chem.descriptors import feature_column_names
from graphslice.chem.molecule import MolArrays, MolGraph, check_graph
from graphslice.chem.parse import MoleculeError, mol_to_smiles
from graphslice.config import ATOM, MOLECULE, RunConfig
from graphslice.data.columns import FeatureColumns, as_descriptors, check_unique, find_smiles_column
from graphslice.data.featurize import parse
from graphslice.data.loaders import NAME, NO_ATOM_ORDER, as_table, column_names, is_frame, reject_molecules
from graphslice.data.store import GraphStore
from graphslice.data.tables import READABLE
from graphslice.errors import InputError, quoted_list

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
    if isinstance(molecules, str | Chem.Mol) or is_graph(molecules):
        molecules = [molecules]
    if isinstance(molecules, np.ndarray):
        if molecules.ndim > 1 and molecules.size != len(molecules):
            raise InputError(f"an array of shape {list(molecules.shape)} is not a list of molecules: give one column")
        molecules = molecules.reshape(-1)
    if isinstance(molecules, bytes | bytearray | Mapping) or not isinstance(molecules, Iterable):
        raise InputError(
            f"{_short_repr(molecules)} is not a molecule: give SMILES, RDKit molecules or graphs, one or many, or a "
            "data frame"
        )
    listed = [one for item in molecules for one in (item.to_data_list() if hasattr(item, "to_data_list") else [item])]
    if level != MOLECULE and any(isinstance(one, Chem.Mol) for one in listed):
        raise InputError(NO_ATOM_ORDER)
    return [_molecule(one) for one in listed]


def frame_molecules(
    frame: Any, smiles: str | None, feature_columns: Sequence[str], decimal: str | None = None
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Read molecules and feature columns (``float32 [R]``, nan: no number; missing ones left out) of a frame. The
    SMILES column is ``smiles`` if it exists, else a single column or detected by name."""
    names = column_names(frame)
    column = names[0] if len(names) == 1 else find_smiles_column(names, None, NAME, smiles)
    present = [name for name in feature_columns if name in names]
    check_unique(names, [column, *present], NAME)
    cells = as_table(frame, [names.index(column)]).column(0).to_pylist()
    columns = {}
    if present:
        features = FeatureColumns(present, decimal)
        numbers = features.parse(as_table(frame, [names.index(name) for name in present]))
        columns = dict(zip(present, numbers.T, strict=True))
        for note in features.notes():
            warnings.warn(note, stacklevel=2)
    return [_molecule(cell) for cell in cells], columns


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
    return "" if missing else MoleculeError(f"{_short_repr(value)} is not a SMILES")


def _short_repr(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"


def is_graph(molecule: object) -> bool:
    """True for a :class:`MolGraph` or a PyG ``Data``; does not import PyG, which takes seconds."""
    return isinstance(molecule, MolGraph) or hasattr(molecule, "edge_index")


def to_store(inputs: Any, columns: Columns | None, config: RunConfig, kinds: Sequence[str]) -> GraphStore:
    """Featurize what :func:`as_molecules` accepts, or a data frame, with descriptors of ``kinds``; invalid molecules
    keep an error message. InputError as there, or if feature columns are missing."""
    level, columns = config.model.level, dict(columns or {})
    if is_frame(inputs):
        if level != MOLECULE:
            reject_molecules(inputs)
        molecules, frame_columns = frame_molecules(
            inputs, config.data.smiles_column, feature_column_names(config.data.descriptors), config.data.decimal
        )
        columns = {**frame_columns, **columns}
    else:
        molecules = as_molecules(inputs, level)
    if kinds and any(map(is_graph, molecules)):
        raise InputError(
            f"the model reads {', '.join(kinds)}, which are computed from SMILES: give SMILES instead of graphs"
        )
    features = as_feature_columns(feature_column_names(config.data.descriptors), columns, len(molecules))
    texts = [one if isinstance(one, str) else "" for one in molecules]
    arrays, errors, order, descriptors = parse(texts, config.graph, kinds=kinds, level=level)
    graphs = [arrays.graph(row) for row in range(len(arrays))]
    for row, molecule in enumerate(molecules):
        if isinstance(molecule, MoleculeError):
            errors[row] = str(molecule)
        elif is_graph(molecule):
            try:
                graphs[row], errors[row] = _check_input_graph(molecule, config.graph.max_atoms), None
            except MoleculeError as error:
                errors[row] = str(error)
    if level != MOLECULE:  # graphs keep their own order
        written = np.split(order, (arrays.atom_ptr if level == ATOM else arrays.bond_ptr)[1:-1])
        for row in (row for row, one in enumerate(molecules) if is_graph(one)):
            size = graphs[row].num_atoms if level == ATOM else graphs[row].num_bonds
            written[row] = np.stack([np.arange(size, dtype=order.dtype)] * 2, axis=1)
        order = np.concatenate([order[:0], *written])
    return GraphStore.from_arrays(MolArrays.from_graphs(graphs), errors, descriptors | features, order, level)


def _check_input_graph(molecule: Any, max_atoms: int) -> MolGraph:
    if not isinstance(molecule, MolGraph):
        from graphslice.data.loaders import from_pyg

        molecule = from_pyg(molecule)
    molecule = check_graph(molecule)
    if molecule.num_atoms == 0:
        raise MoleculeError("the graph has no atoms")
    if molecule.num_atoms > max_atoms:
        raise MoleculeError(f"{molecule.num_atoms} atoms, more than the limit of {max_atoms}")
    return molecule
