"""GraphStore: a preprocessed dataset in one memory-mapped Arrow IPC file, with its schema and its validation.

Row i of the file is row i of the source dataset. It holds the SMILES, the atoms and bonds or an error message, the
labels, the split and the hashes of the molecule. pandas, polars and duckdb can read the file: the integers are
the indices of ``ogb.utils.features``, those of a bond in one number, (type * 6 + stereo) * 2 + conjugated. The compiled
code reads the same bytes through the memory map, without a copy and without bounds checks: contents are checked once,
on opening.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rdkit
from numba import njit

from graphslice.chem.descriptors import DESCRIPTORS, descriptor_width
from graphslice.chem.hashes import MoleculeHashes
from graphslice.chem.molecule import MolArrays, MolGraph, bond_features, check_molecules, invalid_molecule
from graphslice.chem.parse import MoleculeError
from graphslice.config import ATOM, BOND, MOLECULE, GraphConfig, join_names
from graphslice.data.labels import Labels, pointers, ragged_indices
from graphslice.data.splits import NO_SPLIT, SPLITS
from graphslice.data.tables import bool_array, list_offsets, number_array, number_values, text_array, valid_rows
from graphslice.errors import InputError, file_errors, first_line
from graphslice.feature_dims import ATOM_DIMS
from graphslice.system.machine import cores
from graphslice.tasks import Task

# Order of the byte offsets that column_starts returns.
ATOM_OFFSETS, ATOM_VALUES, BOND_OFFSETS, BOND_BEGINS, BOND_ENDS, BOND_KINDS = range(6)
NUM_STARTS = 6
# Item sizes of these columns in bytes; the columns must be aligned to them.
_ITEM_BYTES = (4, 1, 4, 2, 2, 1)


def column_starts(batch: pa.RecordBatch, file: pa.Buffer) -> list[int]:
    """Compute the byte offsets of the ``NUM_STARTS`` columns that :func:`copy_rows` reads, in the map of the file.
    ValueError: a column is compressed, or not aligned to the size of its items."""
    atoms, bonds = batch.column("atoms"), batch.column("bonds")
    buffers = [
        atoms.buffers()[1],
        atoms.values.values.buffers()[1],
        bonds.buffers()[1],
        *(bonds.values.field(name).buffers()[1] for name in ("begin", "end", "kind")),
    ]
    starts = [buffer.address - file.address if buffer is not None and buffer.size else 0 for buffer in buffers]
    for start, buffer, size in zip(starts, buffers, _ITEM_BYTES, strict=True):
        end = start + (0 if buffer is None else buffer.size)
        if start % size or not 0 <= start <= end <= file.size:
            raise ValueError("a column is compressed or misaligned")
    return starts


@njit(cache=True, nogil=True)
def copy_rows(data, shorts, ints, starts, batch_rows, rows, features):
    """Copy the molecules of ``rows``, int64 ``[B]``, each with an atom, out of the bytes of a store (uint8, uint16 and
    int32), padded to the largest, as :meth:`GraphStore.gather` returns them. There are no bounds checks: the contents
    of a store are checked when it is opened."""
    count = len(rows)
    atom_ptr, bond_ptr = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    width = 1
    for b in range(count):
        batch, row = rows[b] // batch_rows, rows[b] % batch_rows
        at = starts[batch, ATOM_OFFSETS] // 4 + row
        size = ints[at + 1] - ints[at]
        width = max(width, size)
        atom_ptr[b + 1] = atom_ptr[b] + size
        at = starts[batch, BOND_OFFSETS] // 4 + row
        bond_ptr[b + 1] = bond_ptr[b] + ints[at + 1] - ints[at]
    atoms = np.zeros((count, width, features), np.uint8)
    degrees = np.zeros((count, width), np.uint8)
    bonds = np.empty((bond_ptr[count], 2), np.int32)
    bond_type_ids = np.empty(bond_ptr[count], np.uint8)
    for b in range(count):
        batch, row = rows[b] // batch_rows, rows[b] % batch_rows
        first = starts[batch, ATOM_VALUES] + features * ints[starts[batch, ATOM_OFFSETS] // 4 + row]
        for a in range(atom_ptr[b + 1] - atom_ptr[b]):
            for f in range(features):
                atoms[b, a, f] = data[first + features * a + f]
        first = ints[starts[batch, BOND_OFFSETS] // 4 + row]
        begins, ends = starts[batch, BOND_BEGINS] // 2 + first, starts[batch, BOND_ENDS] // 2 + first
        kinds = starts[batch, BOND_KINDS] + first
        for m in range(bond_ptr[b + 1] - bond_ptr[b]):
            to = bond_ptr[b] + m
            bonds[to, 0], bonds[to, 1], bond_type_ids[to] = shorts[begins + m], shorts[ends + m], data[kinds + m]
            degrees[b, shorts[begins + m]] += 1
            degrees[b, shorts[ends + m]] += 1
    return atom_ptr, bond_ptr, atoms, degrees, bonds, bond_type_ids


#: File name extension of a store.
STORE_SUFFIX = ".arrow"
#: Rows of every record batch except the last.
BATCH_ROWS = 65_536


def stored_info(path: Path) -> StoreInfo | None:
    """Return the metadata of a store, without a check of its contents; None if the file is no store."""
    with suppress(OSError, KeyError, TypeError, ValueError):
        return StoreInfo.from_metadata(pa.ipc.open_file(pa.memory_map(str(path))).schema.metadata)
    return None


class StoredTexts(Sequence[str]):
    """Texts of all rows of a store, read when they are asked for; ``columns`` has one array per record batch."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._texts = pa.chunked_array(columns, pa.string())

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index):
        return self._texts[index].to_pylist() if isinstance(index, slice) else self._texts[index].as_py()


class GraphStore:
    """Molecules in Arrow record batches, with labels, splits and descriptors. A row without a molecule
    raises :class:`MoleculeError`, a buffer that is no store KeyError, ValueError or ArrowException."""

    def __init__(self, buffer: pa.Buffer, name: str = "the store") -> None:
        self.name = name
        self._buffer = buffer  # keeps the memory map alive
        reader = pa.ipc.open_file(buffer)
        self.info = StoreInfo.from_metadata(reader.schema.metadata)
        if not reader.schema.equals(self.info.schema()):
            raise ValueError("its columns do not match its metadata")
        self.batches: list[pa.RecordBatch] = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in self.batches:
            batch.validate()  # Arrow aborts the process when it reads an array of negative length
        sizes = [batch.num_rows for batch in self.batches]
        if any(size != BATCH_ROWS for size in sizes[:-1]) or any(size > BATCH_ROWS for size in sizes):
            raise ValueError("a record batch has the wrong number of rows")
        self._rows = sum(sizes)
        self.data = np.frombuffer(buffer, np.uint8) if buffer.size else np.empty(0, np.uint8)
        self.data.flags.writeable = False  # also that of a store in memory: numba compiles once for both
        self._shorts = self.data[: buffer.size & ~1].view(np.uint16)
        self._ints = self.data[: buffer.size & ~3].view(np.int32)
        starts = [column_starts(batch, buffer) for batch in self.batches]
        self._starts = np.array(starts, np.int64).reshape(-1, NUM_STARTS)

    @classmethod
    def from_arrays(
        cls,
        arrays: MolArrays,
        errors: Sequence[str | None] | None = None,
        descriptors: Mapping[str, np.ndarray] | None = None,
        order: np.ndarray | None = None,
        level: str = MOLECULE,
    ) -> GraphStore:
        """Create a store in memory; arguments as :func:`~graphslice.data.store.record_batch`."""
        check_molecules(arrays)
        descriptors = descriptors or {}
        schema = StoreInfo(descriptors=tuple(descriptors), level=level).schema()
        ptr = arrays.atom_ptr if level == ATOM else arrays.bond_ptr
        errors = [None] * len(arrays) if errors is None else errors
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            for start in range(0, len(arrays), BATCH_ROWS):
                rows = slice(start, start + BATCH_ROWS)
                part, values = arrays[rows], {name: column[rows] for name, column in descriptors.items()}
                part_order = None if order is None else order[ptr[start] : ptr[start + len(part)]]
                writer.write_batch(record_batch(schema, part, errors[rows], descriptors=values, order=part_order))
        return cls(sink.getvalue())

    @classmethod
    def open(cls, path: str | Path) -> GraphStore:
        """Open a file as a memory map and check its contents; raises InputError for any other than a valid store."""
        path = Path(path)
        with file_errors("read", path):
            buffer = pa.memory_map(str(path)).read_buffer()
        try:
            version = pa.ipc.open_file(buffer).schema.metadata[b"graphslice.format"].decode()
            if version != FORMAT:
                raise ValueError(f"its format is {version}, not {FORMAT}")
            store = cls(buffer, str(path))
            check_contents(path, len(store.batches), store.info.max_atoms)
        except Exception as error:  # damaged bytes raise many types of errors
            raise InputError(
                f"{path} is not a preprocessed dataset of these versions of GraphSlice and RDKit, or is damaged "
                f"({first_line(error)}): recreate it with graphslice featurize"
            ) from None
        return store

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def sizes(self) -> np.ndarray:
        """``int32 [R]``, number of atoms of each row; 0 for rows without a molecule."""
        return self._lengths("atoms")

    @cached_property
    def _num_bonds(self) -> np.ndarray:
        return self._lengths("bonds")

    def atom_bond_counts(self, level: str, rows: np.ndarray) -> np.ndarray:
        """Count the predictions per target of rows ``int64 [B]``: 1, or the number of atoms or bonds; ``int64 [B]``."""
        if level == MOLECULE:
            return np.ones(len(rows), np.int64)
        return (self.sizes if level == ATOM else self._num_bonds)[rows].astype(np.int64)

    @cached_property
    def smiles(self) -> Sequence[str]:
        """SMILES of each row, empty where it has none; an empty sequence if they are unknown (graphs)."""
        columns = [batch.column("smiles") for batch in self.batches]
        return () if any(column.null_count for column in columns) else StoredTexts(columns)

    @cached_property
    def keys(self) -> MoleculeHashes | None:
        """Identity and family hashes of all rows, 0 for rows without a molecule; None if they are not stored."""
        columns = [[batch.column(name) for batch in self.batches] for name in ("identity", "family")]
        if any(array.null_count for arrays in columns for array in arrays):
            return None
        return MoleculeHashes(*(np.concatenate([np.empty(0, np.uint64), *map(np.asarray, c)]) for c in columns))

    def order(self, rows: np.ndarray) -> np.ndarray:
        """Return index in the graph and symmetry class of the atoms or bonds of rows, in SMILES order: ``[S, 2]``."""
        order = self._joined(np.int64, 2, (batch.column("order").values.values for batch in self.batches))
        return order[ragged_indices(pointers(self._lengths("order")), rows)]

    @staticmethod
    def _joined(dtype: type, width: int, columns: Iterable[pa.Array]) -> np.ndarray:
        parts: Iterable[np.ndarray] = (np.asarray(column, dtype).reshape(-1, width) for column in columns)
        return np.concatenate([np.empty((0, width), dtype), *parts])

    def _lengths(self, column: str) -> np.ndarray:
        lengths = (np.diff(list_offsets(batch.column(column))) for batch in self.batches)
        return np.concatenate([np.empty(0, np.int32), *lengths])

    @cached_property
    def errors(self) -> dict[int, str]:
        errors: dict[int, str] = {}
        for number, batch in enumerate(self.batches):
            column = batch.column("error")
            for row in np.flatnonzero(valid_rows(column)).tolist():
                errors[number * BATCH_ROWS + row] = column[row].as_py()
        return errors

    @property
    def faults(self) -> dict[int, str]:
        """The reasons, by row, of rows without a molecule."""
        return {row: reason for row, reason in self.errors.items() if self.sizes[row] == 0}

    @property
    def targets(self) -> np.ndarray:
        """Molecule-level labels, ``float64 [R, T]``, nan where unknown."""
        if not self.info.targets:
            return np.empty((len(self), 0))
        values = (batch.column("targets").values for batch in self.batches)
        return self._joined(np.float64, len(self.info.targets), values)

    def unusable_rows(self) -> np.ndarray:
        """Rows with an error and without a molecule or a molecule-level label, ``int64``, ascending."""
        rows = np.array(sorted(self.errors), np.int64)
        has_label = np.isfinite(self.targets[rows]).any(axis=1)
        return rows[(self.sizes[rows] == 0) | ~has_label]

    def atom_bond_labels(self, level: str, names: Sequence[str] | None = None) -> Labels:
        """Atom- or bond-level labels of all rows in the order of the graphs, by default of all targets of the level."""
        column, known = atom_bond_column(level), self.info.atom_bond_targets[level]
        names = known if names is None else names
        values = self._joined(np.float64, len(known), (batch.column(column).values.values for batch in self.batches))
        values = values[:, [known.index(name) for name in names]]
        return Labels(level, values, pointers(self._lengths(column)), tuple(names))

    @property
    def split(self) -> np.ndarray:
        """``int8 [R]``, index of each row's split in :data:`~graphslice.data.splits.SPLITS`, or ``NO_SPLIT``."""
        indices = (batch.column("split").indices.fill_null(NO_SPLIT) for batch in self.batches)
        return np.concatenate([np.empty(0, np.int8), *map(number_values, indices)])

    @cached_property
    def _descriptors(self) -> dict[str, list[np.ndarray]]:
        """By name, a view ``[rows, F]`` of the file for every record batch."""
        views = {}
        for name in self.info.descriptors:
            columns = [batch.column(descriptor_column(name)) for batch in self.batches]
            values = (column.values if pa.types.is_fixed_size_list(column.type) else column for column in columns)
            views[name] = [number_values(array).reshape(-1, descriptor_width([name])) for array in values]
        return views

    def has_graphs_of(self, config: GraphConfig) -> bool:
        """True if the graphs were made with these settings."""
        return graph_settings(self.info) == graph_settings(config)

    def check_graphs(self, config: GraphConfig) -> None:
        """Raise :class:`InputError` if the graphs were made with other settings than those of a model."""
        if not self.has_graphs_of(config):
            made, needed = (
                " ".join(f"--graph.{name} {value}" for name, value in graph_settings(settings).items())
                for settings in (self.info, config)
            )
            raise InputError(f"{self.name} has {made}, other settings than the model: featurize with {needed}")

    def check_descriptors(self, names: Sequence[str]) -> None:
        """Raise :class:`InputError` if the store lacks any of the named descriptors."""
        if missing := [name for name in names if name not in self.info.descriptors]:
            raise InputError(
                f"{self.name} has no descriptors {', '.join(missing)}, which the model reads: recreate it with "
                f"graphslice featurize --features {join_names(names)}"
            )

    def descriptors(self, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return the named descriptors of rows ``int64 [B]``, concatenated: ``float32 [B, F]``, nan where unknown."""
        self.check_descriptors(names)
        rows = self._checked_rows(rows)
        result = np.empty((len(rows), descriptor_width(names)), np.float32)
        batch_numbers = rows // BATCH_ROWS
        for number in np.unique(batch_numbers).tolist():
            at, start = np.flatnonzero(batch_numbers == number), 0
            in_batch = rows[at] % BATCH_ROWS
            for name in names:
                values = self._descriptors[name][number]
                result[at, start : start + values.shape[1]] = values[in_batch]
                start += values.shape[1]
        return result

    def __getitem__(self, row: int) -> MolGraph:
        if self.sizes[self._checked_rows(np.array([row]))] == 0:
            number, in_batch = divmod(int(row), BATCH_ROWS)
            raise MoleculeError(self.batches[number].column("error")[in_batch].as_py() or "no atoms")
        _, _, atoms, _, bonds, bond_type_ids = self.gather(np.array([row]))
        return MolGraph(atoms[0], bonds, bond_features(bond_type_ids))

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """Copy molecules ``int64 [B]``, each with an atom, padded: ``atom_ptr``, ``bond_ptr`` (``int64 [B + 1]``),
        uint8 ``atoms [B, N, 9]``, ``degrees [B, N]``, ``bonds int32 [M, 2]``, ``bond_type_ids uint8 [M]``."""
        rows = self._checked_rows(rows)
        return copy_rows(self.data, self._shorts, self._ints, self._starts, BATCH_ROWS, rows, len(ATOM_DIMS))

    def _checked_rows(self, rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are out of range: there are {len(self)} rows")
        return rows

    def parts(self, rows: int) -> Iterator[GraphStore]:
        """Copy consecutive rows into stores in memory, of at most ``rows`` rows each."""
        for batch in self.batches:
            for begin in range(0, batch.num_rows, rows):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_file(sink, batch.schema) as writer:
                    writer.write_batch(batch.slice(begin, rows))
                yield GraphStore(sink.getvalue(), self.name)


#: Version of the file format and of the features; it changes whenever the same SMILES would give other features.
FORMAT = f"4 ogb-1.3.6 rdkit-{rdkit.__version__}"


def _full_list(item: pa.DataType, width: int = -1) -> pa.DataType:
    """Return the type of lists without nulls."""
    return pa.list_(pa.field("item", item, nullable=False), width)


_ATOMS = pa.list_(_full_list(pa.uint8(), len(ATOM_DIMS)))
_BOND = pa.struct(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (("begin", pa.uint16()), ("end", pa.uint16()), ("kind", pa.uint8()))
    ]
)
_ORDER = _full_list(_full_list(pa.uint16(), 2))


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
        info = {**vars(self), "tasks": [task.to_dict() for task in self.tasks]}
        return {"graphslice.format": FORMAT, "graphslice.info": json.dumps(info)}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> StoreInfo:
        """Parse the output of :meth:`to_metadata`."""
        values: dict[str, Any] = json.loads(metadata[b"graphslice.info"])
        tasks = tuple(map(Task.from_dict, values.pop("tasks")))
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**settings, tasks=tasks)

    def schema(self) -> pa.Schema:
        columns = [("smiles", pa.string()), ("atoms", _ATOMS), ("bonds", pa.list_(_BOND)), ("error", pa.string())]
        if self.targets:
            columns.append(("targets", pa.list_(pa.field("item", pa.float64()), len(self.targets))))
        columns.append(("split", pa.dictionary(pa.int8(), pa.string())))
        columns += [("identity", pa.uint64()), ("family", pa.uint64())]
        if self.level != MOLECULE:
            columns.append(("order", _ORDER))
        columns += [(descriptor_column(name), _descriptor_type(name)) for name in self.descriptors]
        for level, names in self.atom_bond_targets.items():
            columns.append((atom_bond_column(level), _full_list(_full_list(pa.float32(), len(names)))))
        return pa.schema(columns, metadata=self.to_metadata())


def graph_settings(config: GraphConfig | StoreInfo) -> dict[str, Any]:
    """Return the settings on which the graphs of molecules depend."""
    return {name: getattr(config, name) for name in ("atom_order", "max_atoms", "standardize")}


def descriptor_column(descriptor: str) -> str:
    """Name of the store's column for a kind of descriptors or a column of the user's own."""
    return f"descriptor {descriptor}"


def atom_bond_column(level: str) -> str:
    """Name of the store's column of atom- or bond-level labels: one list per row, which may be empty."""
    return f"{level} targets"


def _descriptor_type(name: str) -> pa.DataType:
    kind = DESCRIPTORS.get(name)
    return pa.float32() if kind is None else _full_list(pa.from_numpy_dtype(kind.dtype), len(kind.names))


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


# Each thread holds a record batch in memory, about 20 MB.
_MOST_THREADS = 4


def check_contents(path: Path, batches: int, max_atoms: int) -> None:
    """Raise an exception if compiled code must not read a file; read without the map, so as not to fill the memory."""

    def check(number: int) -> None:
        with pa.OSFile(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(number)
        batch.validate(full=True)
        atoms, bonds = batch.column("atoms"), batch.column("bonds")
        offsets = list_offsets(atoms), list_offsets(bonds)
        begins, ends, kinds = map(number_values, bonds.values.flatten())
        row = invalid_molecule(*offsets, number_values(atoms.values.values), begins, ends, kinds, max_atoms)
        if row is not None:
            raise ValueError(f"row {row} of record batch {number} is not a valid molecule")

    with ThreadPoolExecutor(max(1, min(batches, cores(), _MOST_THREADS))) as pool:
        list(pool.map(check, range(batches)))
