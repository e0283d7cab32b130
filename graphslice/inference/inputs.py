"""What is given to a model in Python: molecules however they are written, and columns beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from rdkit import Chem

from graphslice.chem.descriptors import compute_descriptors, feature_column_names
from graphslice.chem.molecule import EMPTY_GRAPH, MolArrays, MolGraph, check_graph, read_smiles
from graphslice.chem.parse import MoleculeError
from graphslice.chem.rdkit_molecules import mol_to_smiles
from graphslice.config import RunConfig
from graphslice.data.columns import as_descriptors, check_unique, parse_feature_columns, quoted_list
from graphslice.data.frames import NAME, NO_ATOM_ORDER, as_table, column_names, is_frame, reject_molecules
from graphslice.data.labels import find_smiles_column
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, nearest

#: Numbers by the name of a column, None or nan where unknown.
Columns: TypeAlias = Mapping[str, Sequence[float | None] | np.ndarray]


def as_feature_columns(names: Sequence[str], given: Columns, rows: int) -> dict[str, np.ndarray]:
    """``float32 [R]`` by each name of a column that a model reads, nan where unknown.

    Args:
        names: of the columns.
        given: by name, numbers or None.
        rows: R.

    Raises:
        InputError: for a column that is missing, not read by the model, of another length or without numbers.
    """
    if missing := [name for name in names if name not in given]:
        raise InputError(
            f"the model reads the column{'s' * (len(missing) > 1)} {quoted_list(missing)} beside the molecule: "
            'give a table that has it, or in Python predict(molecules, columns={"name": values})'
        )
    found = {}
    for name, values in given.items():
        if name not in names:
            raise InputError(f"the model reads no column {name!r}{nearest(name, names)}: it has {quoted_list(names)}")
        try:
            numbers = np.atleast_1d(np.array(values, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"the column {name!r} holds values that are no numbers") from None
        if numbers.shape != (rows,):
            raise InputError(f"the column {name!r} has the shape {list(numbers.shape)} for {rows} molecules")
        found[name] = as_descriptors([numbers])[:, 0]
    return {name: found[name] for name in names}


def as_molecules(given: Any) -> list[Any]:
    """The molecules that are given: for each a SMILES, a graph, or the :class:`MoleculeError` why it is neither.

    Args:
        given: one or many SMILES, RDKit molecules, :class:`MolGraph` or PyG ``Data``, of which a ``Batch`` is its
            graphs; an array of one column is that column.

    Raises:
        InputError: for what holds no molecules.
    """
    if isinstance(given, str | Chem.Mol) or is_graph(given):
        given = [given]
    if isinstance(given, np.ndarray):
        if given.ndim > 1 and given.size != len(given):
            raise InputError(f"an array of the shape {list(given.shape)} is no list of molecules: give one column")
        given = given.reshape(-1)
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InputError(
            f"{_short_repr(given)} is no molecule: give SMILES, RDKit molecules or graphs, one or many, or a data frame"
        )
    return [_molecule(one) for several in given for one in _unbatch_graphs(several)]


def frame_molecules(frame: Any, smiles: str | None, own: Sequence[str]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """The molecules of a data frame, and what a model reads beside them.

    Args:
        frame: of pandas, polars or Arrow.
        smiles: the column of the SMILES, if there is one of that name; else it is found by its name. One column alone
            is it.
        own: columns that the model reads; those that are missing are left out.

    Returns:
        As :func:`as_molecules`, and ``float32 [R]`` by column; a cell that is no number is nan, as in a file.

    Raises:
        InputError: if no column looks like one of SMILES, or two of those that are read have one name.
    """
    names = column_names(frame)
    try:
        column = names[0] if len(names) == 1 else find_smiles_column(names, None, NAME, smiles)
    except InputError:
        raise InputError(
            f"{NAME}: which column holds the SMILES? Call one smiles, or give it alone; there are {quoted_list(names)}"
        ) from None
    there = [name for name in own if name in names]
    check_unique(names, [column, *there], NAME)
    cells = as_table(frame, [names.index(column)]).column(0).to_pylist()
    numbers = parse_feature_columns(as_table(frame, [names.index(name) for name in there]), there) if there else None
    columns = {} if numbers is None else dict(zip(there, numbers.T, strict=True))
    return [_molecule(cell) for cell in cells], columns


def _molecule(one: Any) -> Any:
    if isinstance(one, str | MoleculeError) or is_graph(one):
        return one
    if hasattr(one, "as_py"):  # of Arrow
        return _molecule(one.as_py())
    if isinstance(one, Chem.Mol):
        try:
            return mol_to_smiles(one)
        except MoleculeError as reason:
            return reason
    missing = one is None or type(one).__name__ == "NAType" or (isinstance(one, float) and np.isnan(one))
    return "" if missing else MoleculeError(f"{_short_repr(one)} is no SMILES")


def _short_repr(given: object) -> str:
    """A value and its type, in short."""
    text = repr(given)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(given).__name__})"


def _unbatch_graphs(given: Any) -> list:
    """The graphs of a batch of PyG, or what is given."""
    return given.to_data_list() if hasattr(given, "to_data_list") else [given]


def is_graph(molecule: object) -> bool:
    """Whether it is a :class:`MolGraph` or a PyG ``Data``; told without importing PyG, which takes seconds."""
    return isinstance(molecule, MolGraph) or hasattr(molecule, "edge_index")


def to_store(given: Any, columns: Columns | None, config: RunConfig, kinds: Sequence[str]) -> GraphStore:
    """Molecules as a model reads them, row by row; what is none has its reason.

    Args:
        given: as of :func:`as_molecules`, or a data frame, whose columns are found by their names.
        columns: of a model that reads some.
        config: of the model.
        kinds: of the descriptors of a SMILES that the model, or the trees beside it, read.

    Raises:
        InputError: for what holds no molecules, or lacks what the model reads.
    """
    if is_frame(given):
        molecules, found = frame_molecules(
            given, config.data.smiles_column, feature_column_names(config.data.descriptors)
        )
        columns = {**found, **(columns or {})}
    else:
        molecules = as_molecules(given)
    graphs: list[MolGraph] = [EMPTY_GRAPH] * len(molecules)
    reasons: list[str | None] = [str(one) if isinstance(one, MoleculeError) else None for one in molecules]
    texts = [i for i, molecule in enumerate(molecules) if isinstance(molecule, str)]
    smiles = [molecule if isinstance(molecule, str) else "" for molecule in molecules]
    descriptors = input_descriptors(smiles, not any(map(is_graph, molecules)), columns, config, kinds)
    order, most = config.graph.atom_order, config.graph.max_atoms
    arrays, text_reasons = read_smiles([smiles[i] for i in texts], atom_order=order, max_atoms=most)
    for at, i in enumerate(texts):
        graphs[i], reasons[i] = arrays.graph(at), text_reasons[at]
    for i, molecule in enumerate(molecules):
        if is_graph(molecule):
            try:
                graphs[i] = _check_input_graph(molecule, config.graph.max_atoms)
            except MoleculeError as reason:
                reasons[i] = str(reason)
    return GraphStore.from_arrays(MolArrays.from_graphs(graphs), reasons, descriptors)


def as_ordered_molecules(given: Any, smiles_column: str | None) -> list[Any]:
    """The molecules for a model that answers for atoms or bonds, in an order that they have.

    Args:
        given: as of :func:`to_store`.
        smiles_column: of a data frame; found by its name when there is none of that one.

    Returns:
        As :func:`as_molecules`.

    Raises:
        InputError: for RDKit's molecules, of which a SMILES is made, in an order of its own.
    """
    if is_frame(given):
        reject_molecules(given)
        return frame_molecules(given, smiles_column, ())[0]
    if not isinstance(given, str | Chem.Mol) and isinstance(given, Iterable) and not is_graph(given):
        given = list(given)
    if any(isinstance(one, Chem.Mol) for one in (given if isinstance(given, list) else [given])):
        raise InputError(NO_ATOM_ORDER)
    return as_molecules(given)


def input_descriptors(
    smiles: Sequence[str], all_texts: bool, columns: Columns | None, config: RunConfig, kinds: Sequence[str]
) -> dict[str, np.ndarray]:
    """The descriptors that a model reads, as :meth:`GraphStore.from_arrays` takes them.

    Args:
        smiles: of the molecules.
        all_texts: whether no molecule is a graph.
        columns, config, kinds: as of :func:`to_store`.

    Raises:
        InputError: if it reads descriptors of a SMILES and is given graphs, or columns that are not given.
    """
    if kinds and not all_texts:
        raise InputError(
            f"the model reads {', '.join(kinds)} beside the graph, which are made of a SMILES: give SMILES in place of "
            "graphs"
        )
    found = compute_descriptors(smiles, kinds, config.graph.max_atoms) if kinds else {}
    return {**found, **as_feature_columns(feature_column_names(config.data.descriptors), columns or {}, len(smiles))}


def _check_input_graph(molecule: Any, max_atoms: int) -> MolGraph:
    """A graph that was made by hand, a :class:`MolGraph` or a PyG ``Data``; raises MoleculeError for what is none."""
    if not isinstance(molecule, MolGraph):
        from graphslice.data.pyg import from_pyg

        molecule = from_pyg(molecule)
    molecule = check_graph(molecule)
    if molecule.num_atoms == 0:
        raise MoleculeError("the graph has no atoms")
    if molecule.num_atoms > max_atoms:
        raise MoleculeError(f"{molecule.num_atoms} atoms, more than the limit of {max_atoms}")
    return molecule
