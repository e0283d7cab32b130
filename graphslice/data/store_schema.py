"""Arrow schema and metadata of a store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import rdkit

from graphslice.chem.descriptors import DESCRIPTORS
from graphslice.chem.molecule import MolArrays
from graphslice.chem.molecule_hash import MoleculeHashes
from graphslice.config import ATOM, BOND, MOLECULE, GraphConfig
from graphslice.data.arrow import bool_array, number_array, text_array
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.tasks import Task

#: Version of the file format and of the features; it changes whenever the same SMILES would give other features.
FORMAT = f"4 ogb-1.3.6 rdkit-{rdkit.__version__}"

_ATOMS = pa.list_(pa.list_(pa.field("item", pa.uint8(), nullable=False), len(ATOM_DIMS)))
_BOND = pa.struct(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (("begin", pa.uint16()), ("end", pa.uint16()), ("kind", pa.uint8()))
    ]
)
_ORDER = pa.list_(pa.field("item", pa.list_(pa.field("item", pa.uint16(), nullable=False), 2), nullable=False))
_FORMAT_NOTES = {
    "atoms": "element, chirality, degree, charge, hydrogens, radical electrons, hybridization, aromatic, in a ring: "
    "indices of ogb.utils.features",
    "bonds": f"kind = (type * {BOND_DIMS[1]} + stereo) * {BOND_DIMS[2]} + conjugated: indices of ogb.utils.features",
}


@dataclass(frozen=True)
class StoreInfo:
    """Metadata of a store, saved in its Arrow schema."""

    source: str = ""  # name of the dataset
    fingerprint: str = ""  # hash of molecules, labels and splits
    targets: tuple[str, ...] = ()  # names of the molecule-level targets
    atom_order: str = GraphConfig.atom_order
    max_atoms: int = GraphConfig.max_atoms
    # Kinds of chem.descriptors.DESCRIPTORS, and columns of the user's own.
    descriptors: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()  # classification tasks among the targets, whose labels are class indices
    atom_targets: tuple[str, ...] = ()
    bond_targets: tuple[str, ...] = ()
    level: str = MOLECULE  # of the targets; of atom or bond, the store has the order of these in the SMILES
    standardize: str = GraphConfig.standardize

    @property
    def atom_bond_targets(self) -> dict[str, tuple[str, ...]]:
        """Names of the atom- and bond-level targets, by level; levels without targets are omitted."""
        return {level: names for level, names in ((ATOM, self.atom_targets), (BOND, self.bond_targets)) if names}

    def to_metadata(self) -> dict[str, str]:
        """Convert to metadata of an Arrow schema."""
        info = {**vars(self), "tasks": [task.to_dict() for task in self.tasks]}
        notes = {f"graphslice.{column}": text for column, text in _FORMAT_NOTES.items()}
        return {"graphslice.format": FORMAT, "graphslice.info": json.dumps(info), **notes}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> StoreInfo:
        """Parse the output of :meth:`to_metadata`."""
        values: dict[str, Any] = json.loads(metadata[b"graphslice.info"])
        tasks = tuple(map(Task.from_dict, values.pop("tasks")))
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**settings, tasks=tasks)

    def schema(self) -> pa.Schema:
        """Build the Arrow schema of a store with this metadata."""
        columns = [("smiles", pa.string()), ("atoms", _ATOMS), ("bonds", pa.list_(_BOND)), ("error", pa.string())]
        if self.targets:
            columns.append(("targets", pa.list_(pa.field("item", pa.float64()), len(self.targets))))
        columns.append(("split", pa.dictionary(pa.int8(), pa.string())))
        columns += [("identity", pa.uint64()), ("family", pa.uint64())]
        if self.level != MOLECULE:
            columns.append(("order", _ORDER))
        columns += [(descriptor_column(name), _descriptor_type(name)) for name in self.descriptors]
        columns += [
            (atom_bond_column(level), _atom_bond_type(len(names))) for level, names in self.atom_bond_targets.items()
        ]
        return pa.schema(columns, metadata=self.to_metadata())


def graph_settings(config: GraphConfig | StoreInfo) -> dict[str, Any]:
    """Return the settings that determine the graphs."""
    return {name: getattr(config, name) for name in ("atom_order", "max_atoms", "standardize")}


def descriptor_column(descriptor: str) -> str:
    """Name of the store's column for a kind of descriptors or a column of the user's own."""
    return f"descriptor {descriptor}"


def atom_bond_column(level: str) -> str:
    """Name of the store's column of atom- or bond-level labels: one list per row, which may be empty."""
    return f"{level} targets"


def _atom_bond_type(width: int) -> pa.DataType:
    return pa.list_(pa.field("item", pa.list_(pa.field("item", pa.float32(), nullable=False), width), nullable=False))


def _descriptor_type(name: str) -> pa.DataType:
    kind = DESCRIPTORS.get(name)
    if kind is None:
        return pa.float32()
    return pa.list_(pa.field("item", pa.from_numpy_dtype(kind.dtype), nullable=False), len(kind.names))


def record_batch(
    schema: pa.Schema,  # of StoreInfo.schema
    arrays: MolArrays,  # those without atoms are null
    errors: Sequence[str | None],
    smiles: Sequence[str] | None = None,
    targets: np.ndarray | None = None,  # float64 [G, T], nan where unknown
    split: np.ndarray | None = None,  # int8 [G], index in SPLITS, or NO_SPLIT
    descriptors: Mapping[str, np.ndarray] | None = None,  # [G, F] of a kind, or [G] of a column of the user's own
    keys: MoleculeHashes | None = None,
    order: np.ndarray | None = None,  # uint16 [S, 2] of read_smiles
) -> pa.RecordBatch:
    """Convert G rows of a store to Arrow; what is not given is unknown, except that graphs have their own order."""
    rows = len(arrays)
    columns = [text_array([None] * rows if smiles is None else smiles), *_molecule_arrays(arrays), text_array(errors)]
    if targets is not None and "targets" in schema.names:
        columns.append(_fixed_size_lists(targets, schema.field("targets").type))
    split = np.full(rows, NO_SPLIT, np.int8) if split is None else split
    numbers = number_array(split, valid=split != NO_SPLIT)
    columns.append(pa.DictionaryArray.from_arrays(numbers, text_array(SPLITS), safe=True))
    columns += [pa.nulls(rows, pa.uint64())] * 2 if keys is None else map(number_array, (keys.identity, keys.family))
    if "order" in schema.names:
        columns.append(_order_array(order, StoreInfo.from_metadata(schema.metadata).level, arrays))
    for name, values in (descriptors or {}).items():
        kind = schema.field(descriptor_column(name)).type
        if pa.types.is_fixed_size_list(kind):
            columns.append(_fixed_size_lists(values, kind))
        else:
            columns.append(number_array(values.astype(np.float32, copy=False)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _molecule_arrays(arrays: MolArrays) -> list[pa.Array]:
    """Return the columns of atoms and bonds."""
    absent = bool_array(np.diff(arrays.atom_ptr) == 0)
    atoms = pa.FixedSizeListArray.from_arrays(number_array(arrays.atoms.reshape(-1)), type=_ATOMS.value_type)
    begins, ends = (np.ascontiguousarray(arrays.bonds[:, end], dtype=np.uint16) for end in (0, 1))
    bonds = pa.StructArray.from_arrays(
        [number_array(begins), number_array(ends), number_array(arrays.bond_type_ids)], fields=list(_BOND)
    )
    atom_ptr, bond_ptr = (number_array(ptr.astype(np.int32)) for ptr in (arrays.atom_ptr, arrays.bond_ptr))
    return [
        pa.ListArray.from_arrays(atom_ptr, atoms, type=_ATOMS, mask=absent),
        pa.ListArray.from_arrays(bond_ptr, bonds, type=pa.list_(_BOND), mask=absent),
    ]


def nested_lists(values: np.ndarray, ptr: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return a list of lists for each row: row r has ``values[ptr[r]:ptr[r + 1]]``; ``kind`` as in the schema."""
    items = _fixed_size_lists(values, kind.value_type)
    return pa.ListArray.from_arrays(number_array(ptr.astype(np.int32)), items, type=kind)


def _fixed_size_lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    numbers = values.astype(kind.value_type.to_pandas_dtype(), copy=False).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(number_array(numbers), type=kind)


def _order_array(order: np.ndarray | None, level: str, arrays: MolArrays) -> pa.Array:
    """Return the column of orders; graphs keep their own order."""
    ptr = arrays.atom_ptr if level == ATOM else arrays.bond_ptr
    if order is None:
        own = np.arange(ptr[-1]) - np.repeat(ptr[:-1], np.diff(ptr))
        order = np.stack([own, own], axis=1)
    return nested_lists(order, ptr, _ORDER)
