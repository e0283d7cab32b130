"""GraphStore: many molecules in one Arrow IPC file, read where it lies.

A row is a row of the source, so nothing has to be looked up: its atoms and bonds, or the reason why
it is no molecule; its labels; its part of the split. pandas, polars and duckdb read the file as any
other. The compiled code reads the same bytes through the memory map, without a copy.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import rdkit
from numba import njit

from graphslice.chem.molecule import MolArrays, MoleculeError, MolGraph, bond_features
from graphslice.config import GraphConfig
from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

#: Rows of every record batch but the last.
ROWS = 65_536
#: Changes whenever the same SMILES would give other numbers.
FEATURES = f"graphslice-1 ogb-1.3.6 rdkit-{rdkit.__version__}"
#: Names of the parts of a split, by their number in a store.
PARTS = ("train", "valid", "test", "test-dev", "test-challenge")
NO_PART = -1

_FORMAT = "1"
_BLOCK = 1 << 22  # bytes that are checked at a time
_CHECKSUM = b"graphslice-crc32:"
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
        fingerprint: hash of molecules, labels and split.
        targets: names of the labels.
        atom_order, max_atoms: how molecules became graphs (see :class:`~graphslice.config.GraphConfig`).
        features: :data:`FEATURES` of the code that wrote it.
    """

    source: str = ""
    fingerprint: str = ""
    targets: tuple[str, ...] = ()
    atom_order: str = GraphConfig.atom_order
    max_atoms: int = GraphConfig.max_atoms
    features: str = FEATURES

    def to_metadata(self) -> dict[str, str]:
        return {
            "graphslice.format": _FORMAT,
            "graphslice.features": self.features,
            "graphslice.source": self.source,
            "graphslice.fingerprint": self.fingerprint,
            "graphslice.targets": json.dumps(self.targets),
            "graphslice.atom_order": self.atom_order,
            "graphslice.max_atoms": str(self.max_atoms),
            "graphslice.checksum": (_CHECKSUM + b"0" * 8).decode(),
            **{f"graphslice.{column}": text for column, text in _HOW_TO_READ.items()},
        }

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> StoreInfo:
        names = ("source", "fingerprint", "atom_order", "features")
        text = {name: metadata[f"graphslice.{name}".encode()].decode() for name in names}
        targets, max_atoms = (json.loads(metadata[f"graphslice.{name}".encode()]) for name in ("targets", "max_atoms"))
        return cls(**text, targets=tuple(targets), max_atoms=max_atoms)

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
        split: ``int8 [G]``, numbers of :data:`PARTS`, ``NO_PART`` for none.
    """
    if max(arrays.atom_ptr[-1], arrays.bond_ptr[-1]) >= 2**31:
        raise InputError(f"{len(arrays):,} rows hold more than 2,147,483,647 atoms: lower graph.max_atoms")
    absent = pa.array(np.diff(arrays.atom_ptr) == 0)
    atoms = pa.FixedSizeListArray.from_arrays(pa.array(arrays.atoms.reshape(-1)), type=_ATOMS.value_type)
    bonds = pa.StructArray.from_arrays(
        [
            pa.array(np.ascontiguousarray(arrays.bonds[:, 0], dtype=np.uint16)),
            pa.array(np.ascontiguousarray(arrays.bonds[:, 1], dtype=np.uint16)),
            pa.array(arrays.bond_type_ids),
        ],
        fields=list(_BOND),
    )
    columns = [
        pa.ListArray.from_arrays(pa.array(arrays.atom_ptr.astype(np.int32)), atoms, type=_ATOMS, mask=absent),
        pa.ListArray.from_arrays(pa.array(arrays.bond_ptr.astype(np.int32)), bonds, type=pa.list_(_BOND), mask=absent),
        pa.array(errors, pa.string()),
    ]
    if "targets" in schema.names:
        columns.append(
            pa.FixedSizeListArray.from_arrays(pa.array(targets.reshape(-1)), type=schema.field("targets").type)
        )
    parts = np.full(len(arrays), NO_PART, np.int8) if split is None else split
    columns.append(pa.DictionaryArray.from_arrays(pa.array(parts, mask=parts == NO_PART), pa.array(PARTS), safe=True))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class GraphStore(Sequence[MolGraph]):
    """Molecules by row; item i is a :class:`MolGraph`, or raises :class:`MoleculeError` with the reason.

    Attributes:
        info: what the store says of itself.
        name: its path, for messages.
        batches: the record batches of the file.
    """

    def __init__(self, buffer: pa.Buffer, name: str = "the store") -> None:
        self.name = name
        self._buffer = buffer  # keeps the memory map alive
        reader = pa.ipc.open_file(buffer)
        self.info = StoreInfo.from_metadata(reader.schema.metadata)
        self.batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        sizes = [batch.num_rows for batch in self.batches]
        if any(size != ROWS for size in sizes[:-1]) or any(size > ROWS for size in sizes):
            raise ValueError("a record batch of another size")
        self._rows = sum(sizes)
        #: The bytes of the file, and where in them the columns of each record batch begin.
        self.data = np.frombuffer(buffer, np.uint8) if buffer.size else np.empty(0, np.uint8)
        self.places = np.array([self._places(batch) for batch in self.batches], np.int64).reshape(-1, len(_PLACES))

    def _places(self, batch: pa.RecordBatch) -> list[int]:
        atoms, bonds = batch.column("atoms"), batch.column("bonds")
        ends = bonds.values
        columns = [
            atoms.buffers()[1],
            atoms.values.values.buffers()[1],
            bonds.buffers()[1],
            *(ends.field(name).buffers()[1] for name in ("begin", "end", "kind")),
        ]
        return [0 if column is None else column.address - self._buffer.address for column in columns]

    @classmethod
    def from_arrays(cls, arrays: MolArrays, errors: Sequence[str | None] | None = None) -> GraphStore:
        """A store in memory."""
        schema = StoreInfo().schema()
        errors = [None] * len(arrays) if errors is None else errors
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            for begin in range(0, len(arrays), ROWS):
                part = arrays[begin : begin + ROWS]
                writer.write_batch(record_batch(schema, part, errors[begin : begin + ROWS]))
        return cls(sink.getvalue())

    @classmethod
    def from_graphs(cls, graphs: Sequence[MolGraph]) -> GraphStore:
        """A store in memory."""
        return cls.from_arrays(MolArrays.from_graphs(graphs))

    @classmethod
    def open(cls, path: str | Path) -> GraphStore:
        """Map a file into memory, after its checksum was found right.

        Raises:
            InputError: if it is missing, truncated, damaged, no GraphStore, or written by a version
                that made other features of the same molecules.
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
        except (pa.ArrowException, OSError):
            raise InputError(f"{path} is damaged: {again}") from None
        if b"graphslice.format" not in metadata and _CHECKSUM not in buffer[: min(buffer.size, 65_536)].to_pybytes():
            raise InputError(f"{path} is no GraphStore: an Arrow file that GraphSlice did not write")
        if not _is_whole(path, buffer):
            raise InputError(f"{path} is damaged, its checksum is wrong: {again}")
        if metadata.get(b"graphslice.format") != _FORMAT.encode():
            raise InputError(f"{path} was written by another version of GraphSlice: {again}")
        try:
            store = cls(buffer, str(path))
        except (ValueError, KeyError):
            raise InputError(f"{path} is no GraphStore that this version reads: {again}") from None
        if store.info.features != FEATURES:
            raise InputError(f"{path} has features of {store.info.features}, and this is {FEATURES}: {again}")
        return store

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def sizes(self) -> np.ndarray:
        """``int32 [R]``, the number of atoms of each row; 0 where there is no molecule."""
        offsets = [np.frombuffer(b.column("atoms").buffers()[1], np.int32, b.num_rows + 1) for b in self.batches]
        return np.concatenate([np.empty(0, np.int32), *map(np.diff, offsets)])

    @property
    def errors(self) -> dict[int, str]:
        """The reason of each row that has one."""
        found: dict[int, str] = {}
        for number, batch in enumerate(self.batches):
            column = batch.column("error")
            if column.null_count < len(column):
                for row in np.flatnonzero(np.asarray(column.is_valid())):
                    found[number * ROWS + int(row)] = column[int(row)].as_py()
        return found

    @property
    def targets(self) -> np.ndarray:
        """``float64 [R, T]``, nan where unknown."""
        width = len(self.info.targets)
        if not width:
            return np.empty((len(self), 0))
        parts = [np.asarray(batch.column("targets").values).reshape(-1, width) for batch in self.batches]
        return np.concatenate([np.empty((0, width)), *parts])

    @property
    def split(self) -> np.ndarray:
        """``int8 [R]``, the number of each row's part in :data:`PARTS`; ``NO_PART`` for none."""
        parts = [b.column("split").indices.fill_null(NO_PART).to_numpy(zero_copy_only=False) for b in self.batches]
        return np.concatenate([np.empty(0, np.int8), *parts])

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
            number, row = divmod(index, ROWS)
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
        return _gather(self.data, self.places, ROWS, rows, len(ATOM_DIMS))

    def __getstate__(self) -> dict:
        raise TypeError("a GraphStore is not sent between processes: open its file there")


#: The columns of ``GraphStore.places``.
_PLACES = _ATOM_OFFSETS, _ATOM_VALUES, _BOND_OFFSETS, _BEGINS, _ENDS, _KINDS = range(6)


@njit(cache=True, nogil=True)
def _gather(data, places, rows_of_batch, rows, features):
    ints = data[: len(data) // 4 * 4].view(np.int32)
    shorts = data[: len(data) // 2 * 2].view(np.uint16)
    count = len(rows)
    atom_ptr, bond_ptr = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    width = 1
    for b in range(count):
        batch, row = rows[b] // rows_of_batch, rows[b] % rows_of_batch
        at = places[batch, _ATOM_OFFSETS] // 4 + row
        size = ints[at + 1] - ints[at]
        width = max(width, size)
        atom_ptr[b + 1] = atom_ptr[b] + size
        at = places[batch, _BOND_OFFSETS] // 4 + row
        bond_ptr[b + 1] = bond_ptr[b] + ints[at + 1] - ints[at]
    atoms = np.zeros((count, width, features), np.uint8)
    degrees = np.zeros((count, width), np.uint8)
    bonds = np.empty((bond_ptr[count], 2), np.int32)
    bond_type_ids = np.empty(bond_ptr[count], np.uint8)
    for b in range(count):
        batch, row = rows[b] // rows_of_batch, rows[b] % rows_of_batch
        first = places[batch, _ATOM_VALUES] + features * ints[places[batch, _ATOM_OFFSETS] // 4 + row]
        flat = atoms[b].reshape(-1)
        for k in range(features * (atom_ptr[b + 1] - atom_ptr[b])):
            flat[k] = data[first + k]
        first = ints[places[batch, _BOND_OFFSETS] // 4 + row]
        begins, ends = places[batch, _BEGINS] // 2 + first, places[batch, _ENDS] // 2 + first
        kinds = places[batch, _KINDS] + first
        for m in range(bond_ptr[b + 1] - bond_ptr[b]):
            to = bond_ptr[b] + m
            bonds[to, 0], bonds[to, 1], bond_type_ids[to] = shorts[begins + m], shorts[ends + m], data[kinds + m]
            degrees[b, shorts[begins + m]] += 1
            degrees[b, shorts[ends + m]] += 1
    return atom_ptr, bond_ptr, atoms, degrees, bonds, bond_type_ids


def _marks(buffer: pa.Buffer) -> list[int]:
    """Where the checksum stands: in the schema at the beginning of the file and again in the footer."""
    data = np.frombuffer(buffer, np.uint8)
    # An Arrow file is ARROW1 and two zeros, a mark, the length of the schema, the schema, ...
    schema = 16 + int.from_bytes(data[12:16].tobytes(), "little")
    # ..., the footer, its length, ARROW1.
    footer = len(data) - 10 - int.from_bytes(data[-10:-6].tobytes(), "little")
    found = []
    for begin, end in ((0, schema), (max(footer, schema), len(data))):
        text, offset = data[begin:end].tobytes(), begin
        at = text.find(_CHECKSUM)
        while at >= 0:
            found.append(offset + at)
            at = text.find(_CHECKSUM, at + 1)
    return found


def _checksum(path: Path, marks: list[int]) -> bytes:
    """CRC-32 of the whole file, the checksum itself taken for zeros; read in blocks, so that no memory fills."""
    crc = 0
    with path.open("rb") as file:
        while block := bytearray(file.read(_BLOCK)):
            begin = file.tell() - len(block)
            for mark in marks:
                for at in range(mark + len(_CHECKSUM) - begin, mark + len(_CHECKSUM) + 8 - begin):
                    if 0 <= at < len(block):
                        block[at] = ord("0")
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}".encode()


def _is_whole(path: Path, buffer: pa.Buffer) -> bool:
    marks = _marks(buffer)
    if not marks or any(mark + len(_CHECKSUM) + 8 > buffer.size for mark in marks):
        return False
    written = {buffer[mark + len(_CHECKSUM) : mark + len(_CHECKSUM) + 8].to_pybytes() for mark in marks}
    return written == {_checksum(path, marks)}


def seal(path: Path) -> None:
    """Write the checksum into a file whose other bytes are final."""
    marks = _marks(pa.memory_map(str(path)).read_buffer())
    checksum = _checksum(path, marks)
    with path.open("r+b") as file:
        for mark in marks:
            file.seek(mark + len(_CHECKSUM))
            file.write(checksum)
