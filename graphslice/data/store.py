"""GraphStore: many molecules in one Arrow IPC file, read where it lies.

A row is a row of the source, so nothing has to be looked up: its atoms and bonds, or the reason why
it is no molecule; its labels; its split. pandas, polars and duckdb read the file as any other. The
compiled code reads the same bytes through the memory map, without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import rdkit

from graphslice.chem.molecule import MolArrays, MoleculeError, MolGraph, bond_features, check_molecules
from graphslice.config import GraphConfig
from graphslice.data import checksum
from graphslice.data.arrow import bool_array, number_array, text_array, valid_rows
from graphslice.data.gather import NUM_STARTS, column_starts, gather_rows
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.data.store_check import StoreFault, check_contents
from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.tasks import Task

#: How the name of a store's file ends.
STORE_SUFFIX = ".arrow"
#: Rows of every record batch but the last.
BATCH_ROWS = 65_536
#: Changes whenever the same SMILES would give other numbers.
FEATURES = f"graphslice-1 ogb-1.3.6 rdkit-{rdkit.__version__}"

_FORMAT = "1"
_ATOMS = pa.list_(pa.list_(pa.field("item", pa.uint8(), nullable=False), len(ATOM_DIMS)))
_BOND = pa.struct(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (("begin", pa.uint16()), ("end", pa.uint16()), ("kind", pa.uint8()))
    ]
)
_HOW_TO_READ = {
    "atoms": "element, chirality, degree, charge, hydrogens, radical electrons, hybridization, aromatic, in a ring: "
    "indices of ogb.utils.features",
    "bonds": f"kind = (type * {BOND_DIMS[1]} + stereo) * {BOND_DIMS[2]} + conjugated: indices of ogb.utils.features",
}


@dataclass(frozen=True)
class StoreInfo:
    """What a store says of itself, in the metadata of its schema.

    Attributes:
        source: name of the data.
        fingerprint: hash of molecules, labels and splits.
        targets: names of the labels.
        tasks: of those labels that are places of classes.
        atom_order, max_atoms: how molecules became graphs (see :class:`~graphslice.config.GraphConfig`).
        features: :data:`FEATURES` of the code that wrote it.
    """

    source: str = ""
    fingerprint: str = ""
    targets: tuple[str, ...] = ()
    atom_order: str = GraphConfig.atom_order
    max_atoms: int = GraphConfig.max_atoms
    features: str = FEATURES
    tasks: tuple[Task, ...] = ()

    def to_metadata(self) -> dict[str, str]:
        return {
            "graphslice.format": _FORMAT,
            "graphslice.features": self.features,
            "graphslice.source": self.source,
            "graphslice.fingerprint": self.fingerprint,
            "graphslice.targets": json.dumps(self.targets),
            "graphslice.atom_order": self.atom_order,
            "graphslice.max_atoms": str(self.max_atoms),
            "graphslice.checksum": checksum.UNSEALED,
            **({"graphslice.tasks": json.dumps([task.to_dict() for task in self.tasks])} if self.tasks else {}),
            **{f"graphslice.{column}": text for column, text in _HOW_TO_READ.items()},
        }

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> StoreInfo:
        """Raises KeyError or ValueError for what :meth:`to_metadata` does not write."""
        names = ("source", "fingerprint", "atom_order", "features")
        text = {name: metadata[f"graphslice.{name}".encode()].decode() for name in names}
        targets, max_atoms = (json.loads(metadata[f"graphslice.{name}".encode()]) for name in ("targets", "max_atoms"))
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise ValueError("graphslice.targets is no list of names")
        if type(max_atoms) is not int:
            raise ValueError("graphslice.max_atoms is no whole number")
        GraphConfig(atom_order=text["atom_order"], max_atoms=max_atoms)  # refuses others
        tasks = [Task.from_dict(values) for values in json.loads(metadata.get(b"graphslice.tasks", b"[]"))]
        return cls(**text, targets=tuple(targets), max_atoms=max_atoms, tasks=tuple(tasks))

    def schema(self) -> pa.Schema:
        columns = [("atoms", _ATOMS), ("bonds", pa.list_(_BOND)), ("error", pa.string())]
        if self.targets:
            columns.append(("targets", pa.list_(pa.field("item", pa.float64()), len(self.targets))))
        columns.append(("split", pa.dictionary(pa.int8(), pa.string())))
        return pa.schema(columns, metadata=self.to_metadata())


def record_batch(
    schema: pa.Schema,
    arrays: MolArrays,
    errors: Sequence[str | None],
    targets: np.ndarray | None = None,
    split: np.ndarray | None = None,
) -> pa.RecordBatch:
    """Rows of a store.

    Args:
        schema: of :meth:`StoreInfo.schema`.
        arrays: G molecules; those without atoms are null.
        errors: G times None or a reason.
        targets: ``float64 [G, T]``, nan where unknown.
        split: ``int8 [G]``, each row's number in :data:`~graphslice.data.splits.SPLITS`, ``NO_SPLIT`` for none.
    """
    if max(arrays.atom_ptr[-1], arrays.bond_ptr[-1]) >= 2**31:
        raise InputError(f"{len(arrays):,} rows hold more than 2,147,483,647 atoms: lower graph.max_atoms")
    absent = bool_array(np.diff(arrays.atom_ptr) == 0)
    atoms = pa.FixedSizeListArray.from_arrays(number_array(arrays.atoms.reshape(-1)), type=_ATOMS.value_type)
    begins, ends = (np.ascontiguousarray(arrays.bonds[:, end], dtype=np.uint16) for end in (0, 1))
    bonds = pa.StructArray.from_arrays(
        [number_array(begins), number_array(ends), number_array(arrays.bond_type_ids)], fields=list(_BOND)
    )
    atom_ptr, bond_ptr = (number_array(ptr.astype(np.int32)) for ptr in (arrays.atom_ptr, arrays.bond_ptr))
    columns = [
        pa.ListArray.from_arrays(atom_ptr, atoms, type=_ATOMS, mask=absent),
        pa.ListArray.from_arrays(bond_ptr, bonds, type=pa.list_(_BOND), mask=absent),
        text_array(errors),
    ]
    if targets is not None and "targets" in schema.names:
        values = number_array(targets.reshape(-1))
        columns.append(pa.FixedSizeListArray.from_arrays(values, type=schema.field("targets").type))
    split = np.full(len(arrays), NO_SPLIT, np.int8) if split is None else split
    numbers = number_array(split, valid=split != NO_SPLIT)
    columns.append(pa.DictionaryArray.from_arrays(numbers, text_array(SPLITS), safe=True))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class GraphStore(Sequence[MolGraph]):
    """Molecules by row; item i is a :class:`MolGraph`, or raises :class:`MoleculeError` with the reason.

    Attributes:
        info: what the store says of itself.
        name: its path, for messages.
        batches: the record batches of the file.
        data: ``uint8``, the bytes of the file.
    """

    def __init__(self, buffer: pa.Buffer, name: str = "the store") -> None:
        self.name = name
        self._buffer = buffer  # keeps the memory map alive
        reader = pa.ipc.open_file(buffer)
        self.info = StoreInfo.from_metadata(reader.schema.metadata)
        self.batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        if not reader.schema.equals(self.info.schema()):
            raise ValueError("its columns are not those of a store")
        for batch in self.batches:
            batch.validate()  # before anything is asked of it: Arrow ends the process for an array of negative length
        sizes = [batch.num_rows for batch in self.batches]
        if any(size != BATCH_ROWS for size in sizes[:-1]) or any(size > BATCH_ROWS for size in sizes):
            raise ValueError("a record batch of another size")
        self._rows = sum(sizes)
        self.data = np.frombuffer(buffer, np.uint8) if buffer.size else np.empty(0, np.uint8)
        starts = [column_starts(batch, buffer) for batch in self.batches]
        self._starts = np.array(starts, np.int64).reshape(-1, NUM_STARTS)

    @classmethod
    def from_arrays(cls, arrays: MolArrays, errors: Sequence[str | None] | None = None) -> GraphStore:
        """A store in memory.

        Raises:
            InputError: if a molecule has a bond to an atom that it has not, or values that OGB has not.
        """
        check_molecules(arrays)
        schema = StoreInfo().schema()
        errors = [None] * len(arrays) if errors is None else errors
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            for begin in range(0, len(arrays), BATCH_ROWS):
                rows = slice(begin, begin + BATCH_ROWS)
                writer.write_batch(record_batch(schema, arrays[rows], errors[rows]))
        return cls(sink.getvalue())

    @classmethod
    def from_graphs(cls, graphs: Sequence[MolGraph]) -> GraphStore:
        """A store in memory; raises InputError as :meth:`from_arrays`."""
        return cls.from_arrays(MolArrays.from_graphs(graphs))

    @classmethod
    def open(cls, path: str | Path) -> GraphStore:
        """Map a file into memory, after its checksum was found right.

        Raises:
            InputError: if it is missing, truncated, damaged, no GraphStore, written by a version
                that made other features of the same molecules, or has a row that is none of a molecule.
        """
        path = Path(path)
        try:
            buffer = pa.memory_map(str(path)).read_buffer()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from None
        again = "make it again with graphslice featurize"
        if buffer.size < 16 or buffer[:6].to_pybytes() != b"ARROW1":
            raise InputError(f"{path} is no Arrow file, so no GraphStore")
        if buffer[buffer.size - 6 :].to_pybytes() != b"ARROW1":
            raise InputError(f"{path} is truncated: {again}")
        try:
            metadata = pa.ipc.open_file(buffer).schema.metadata or {}
        except Exception:  # a damaged file fails in as many ways as there are bytes
            raise InputError(f"{path} is damaged: {again}") from None
        begin = buffer[: min(buffer.size, 65_536)].to_pybytes()
        if b"graphslice.format" not in metadata and checksum.MARK not in begin:
            raise InputError(f"{path} is no GraphStore: an Arrow file that GraphSlice did not write")
        if not checksum.is_sealed(path, buffer):
            raise InputError(f"{path} is damaged, its checksum is wrong: {again}")
        if metadata.get(b"graphslice.format") != _FORMAT.encode():
            raise InputError(f"{path} was written by another version of GraphSlice: {again}")
        try:
            store = cls(buffer, str(path))
            if store.info.features == FEATURES:
                check_contents(path, len(store.batches), BATCH_ROWS, store.info.max_atoms)
        except StoreFault as fault:
            raise InputError(f"{path} is damaged: {fault}: {again}") from None
        except Exception:  # what Arrow says of a file that is none of its own
            raise InputError(f"{path} is no GraphStore that this version reads: {again}") from None
        if store.info.features != FEATURES:
            raise InputError(f"{path} has features of {store.info.features}, and this is {FEATURES}: {again}")
        return store

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def sizes(self) -> np.ndarray:
        """``int32 [R]``, the number of atoms of each row; 0 where there is no molecule."""
        filled = [batch for batch in self.batches if batch.num_rows]
        offsets = [np.frombuffer(b.column("atoms").buffers()[1], np.int32, b.num_rows + 1) for b in filled]
        return np.concatenate([np.empty(0, np.int32), *map(np.diff, offsets)])

    @property
    def errors(self) -> dict[int, str]:
        """The reason of each row that has one."""
        found: dict[int, str] = {}
        for number, batch in enumerate(self.batches):
            column = batch.column("error")
            if column.null_count < len(column):
                for row in np.flatnonzero(valid_rows(column)).tolist():
                    found[number * BATCH_ROWS + row] = column[row].as_py()
        return found

    @property
    def targets(self) -> np.ndarray:
        """``float64 [R, T]``, nan where unknown."""
        width = len(self.info.targets)
        if not width:
            return np.empty((len(self), 0))
        values = [np.asarray(batch.column("targets").values).reshape(-1, width) for batch in self.batches]
        return np.concatenate([np.empty((0, width)), *values])

    @property
    def split(self) -> np.ndarray:
        """``int8 [R]``, each row's number in :data:`~graphslice.data.splits.SPLITS`, ``NO_SPLIT`` for none."""
        indices = [batch.column("split").indices.fill_null(NO_SPLIT) for batch in self.batches]
        return np.concatenate([np.empty(0, np.int8), *(array.to_numpy(zero_copy_only=False) for array in indices)])

    @overload
    def __getitem__(self, index: int) -> MolGraph: ...
    @overload
    def __getitem__(self, index: slice) -> list[MolGraph]: ...
    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"molecule {index} of {len(self)}")
        index = int(index) % len(self)
        if self.sizes[index] == 0:
            number, row = divmod(index, BATCH_ROWS)
            raise MoleculeError(self.batches[number].column("error")[row].as_py() or "no atoms")
        _, _, atoms, _, bonds, bond_type_ids = self.gather(np.array([index]))
        return MolGraph(atoms[0], bonds, bond_features(bond_type_ids))

    def __iter__(self) -> Iterator[MolGraph]:
        return (self[i] for i in range(len(self)))

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Copy some molecules out of the store, padded to the largest.

        Args:
            rows: ``int64 [B]``, of molecules with at least one atom.

        Returns:
            ``atom_ptr int64 [B + 1]``, ``bond_ptr int64 [B + 1]``, ``atoms uint8 [B, N, 9]``,
            ``degrees uint8 [B, N]``, ``bonds int32 [M, 2]`` and ``bond_type_ids uint8 [M]``, as
            :func:`~graphslice.chem.shortest_paths.shortest_path_types` reads them.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        return gather_rows(self.data, self._starts, BATCH_ROWS, rows, len(ATOM_DIMS))

    def __getstate__(self) -> dict:
        raise TypeError("a GraphStore is not sent between processes: open its file there")
