"""GraphStore: many molecules in one Arrow IPC file, read where it lies.

A row is a row of the source, so nothing has to be looked up: its atoms and bonds, or the reason why
it is no molecule; its labels; its split. pandas, polars and duckdb read the file as any other. The
compiled code reads the same bytes through the memory map, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa

from graphslice.chem.descriptors import descriptor_width
from graphslice.chem.molecule import MolArrays, MolGraph, bond_features, check_molecules
from graphslice.chem.parse import MoleculeError
from graphslice.config import ATOM, MOLECULE, join_names
from graphslice.data import checksum
from graphslice.data.arrow import valid_rows
from graphslice.data.atom_bond_labels import AtomBondLabels, pointers
from graphslice.data.copy_rows import NUM_STARTS, column_starts, copy_rows
from graphslice.data.splits import NO_SPLIT
from graphslice.data.store_check import StoreFault, check_contents
from graphslice.data.store_schema import FEATURES as FEATURES
from graphslice.data.store_schema import FORMAT, StoreInfo, atom_bond_column, descriptor_column
from graphslice.data.store_schema import record_batch as record_batch
from graphslice.errors import InputError
from graphslice.feature_dims import ATOM_DIMS

#: How the name of a store's file ends.
STORE_SUFFIX = ".arrow"
#: Rows of every record batch but the last.
BATCH_ROWS = 65_536


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
    def from_arrays(
        cls,
        arrays: MolArrays,
        errors: Sequence[str | None] | None = None,
        descriptors: Mapping[str, np.ndarray] | None = None,
    ) -> GraphStore:
        """A store in memory; arguments as for :func:`record_batch`.

        Raises:
            InputError: if a molecule has a bond to an atom that it has not, or values that OGB has not.
        """
        check_molecules(arrays)
        descriptors = descriptors or {}
        schema = StoreInfo(descriptors=tuple(descriptors)).schema()
        errors = [None] * len(arrays) if errors is None else errors
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            for begin in range(0, len(arrays), BATCH_ROWS):
                rows = slice(begin, begin + BATCH_ROWS)
                some = {name: values[rows] for name, values in descriptors.items()}
                writer.write_batch(record_batch(schema, arrays[rows], errors[rows], descriptors=some))
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
        if b"graphslice.format" not in metadata and checksum.CHECKSUM_MARK not in begin:
            raise InputError(f"{path} is no GraphStore: an Arrow file that GraphSlice did not write")
        if not checksum.has_valid_checksum(path, buffer):
            raise InputError(f"{path} is damaged, its checksum is wrong: {again}")
        if metadata.get(b"graphslice.format") != FORMAT.encode():
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
        return self._lengths("atoms")

    @cached_property
    def _num_bonds(self) -> np.ndarray:
        return self._lengths("bonds")

    def atom_bond_counts(self, level: str, rows: np.ndarray) -> np.ndarray:
        """``int64 [B]``: how many answers some rows have: 1, or their number of atoms, or of bonds.

        Args:
            level: molecule, atom or bond.
            rows: ``int64 [B]``.
        """
        if level == MOLECULE:
            return np.ones(len(rows), np.int64)
        return (self.sizes if level == ATOM else self._num_bonds)[rows].astype(np.int64)

    def _lengths(self, column: str) -> np.ndarray:
        filled = [batch for batch in self.batches if batch.num_rows]
        offsets = [np.frombuffer(b.column(column).buffers()[1], np.int32, b.num_rows + 1) for b in filled]
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

    def atom_bond_labels(self, level: str) -> AtomBondLabels:
        """The labels of the atoms, or bonds, of all rows, in the order of the graphs; of ``info.atom_bond_targets``."""
        columns = [batch.column(atom_bond_column(level)) for batch in self.batches]
        names = self.info.atom_bond_targets[level]
        width = len(names)
        values = [np.asarray(column.values.values, np.float64).reshape(-1, width) for column in columns]
        counts = self._lengths(atom_bond_column(level))
        return AtomBondLabels(level, np.concatenate([np.empty((0, width)), *values]), pointers(counts), names)

    @property
    def split(self) -> np.ndarray:
        """``int8 [R]``, each row's number in :data:`~graphslice.data.splits.SPLITS`, ``NO_SPLIT`` for none."""
        indices = [batch.column("split").indices.fill_null(NO_SPLIT) for batch in self.batches]
        return np.concatenate([np.empty(0, np.int8), *(array.to_numpy(zero_copy_only=False) for array in indices)])

    @cached_property
    def _descriptors(self) -> dict[str, list[np.ndarray]]:
        """By name ``[rows, F]`` of every record batch, where they lie in the file."""
        found = {}
        for name in self.info.descriptors:
            columns = [batch.column(descriptor_column(name)) for batch in self.batches]
            values = [column.values if pa.types.is_fixed_size_list(column.type) else column for column in columns]
            buffers = [(array.buffers()[1] or b"", array.type.to_pandas_dtype()) for array in values]
            found[name] = [
                np.frombuffer(buffer, dtype)[: len(array)].reshape(len(column), -1) if len(array) else np.empty((0, 1))
                for (buffer, dtype), array, column in zip(buffers, values, columns, strict=True)
            ]
        return found

    def check_descriptors(self, names: Sequence[str]) -> None:
        """Raise :class:`InputError` if the store lacks descriptors of some names."""
        if missing := [name for name in names if name not in self.info.descriptors]:
            raise InputError(
                f"{self.name} has no descriptors {', '.join(missing)}, which the model reads: make it again with "
                f"graphslice featurize --features {join_names(names)}"
            )

    def descriptors(self, rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """``float32 [B, F]``, descriptors of some rows, those of each name one after another; nan where unknown.

        Args:
            rows: ``int64 [B]``.
            names: of ``info.descriptors``.

        Raises:
            InputError: if the store has no such descriptors.
        """
        self.check_descriptors(names)
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        found = np.empty((len(rows), descriptor_width(names)), np.float32)
        numbers = rows // BATCH_ROWS
        for number in np.unique(numbers).tolist():
            here, begin = numbers == number, 0
            for name in names:
                values = self._descriptors[name][number]
                found[here, begin : begin + values.shape[1]] = values[rows[here] % BATCH_ROWS]
                begin += values.shape[1]
        return found

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
        return copy_rows(self.data, self._starts, BATCH_ROWS, rows, len(ATOM_DIMS))

    def __getstate__(self) -> dict:
        raise TypeError("a GraphStore is not sent between processes: open its file there")
