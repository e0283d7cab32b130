"""Files of stores, changed byte by byte or column by column."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fuzzing.mutations import NUMBERS, mutated_bytes, odd_value
from graphslice.chem.parse import MoleculeError
from graphslice.data.batches import collate_rows
from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels
from graphslice.data.preprocess import build_store
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.feature_dims import ATOM_DIMS

_SMILES = ["c1ccccc1O", "oops", "C", "CC(=O)[O-].[Na+]", "", "C" * 70, "C12C3C4C1C5C2C3C45", "[H+]"]


def target(folder: Path) -> Callable[[random.Random], None]:
    contents = []
    for targets, order, level in (
        ((), "canonical", "molecule"),
        (("y",), "canonical", "bond"),
        (("y", "z"), "input", "atom"),
    ):
        labels, split = Labels.of_molecules(np.ones((8, len(targets)))), np.arange(-1, 7, dtype=np.int8) % 3
        rows = LabelledDataset("", _SMILES, labels, [], {3: "no number"}, split)
        store = build_store(
            folder / "base.arrow", [rows], StoreInfo("some", "", targets, order, level=level), workers=1
        )
        contents.append((folder / "base.arrow").read_bytes())
        del store
    path = folder / "changed.arrow"

    def run(draw: random.Random) -> None:
        content = draw.choice(contents)
        path.unlink(missing_ok=True)  # the file that is mapped by others stays theirs
        if draw.random() < 0.5:
            path.write_bytes(mutated_bytes(draw, content))
        else:
            _write_changed(draw, content, path)
        _use(GraphStore.open(path))

    return run


def _use(store: GraphStore) -> None:
    """All that is asked of a store that opens."""
    rows = np.flatnonzero(store.sizes)
    if not len(store) == len(store.sizes) == len(store.split) == len(store.targets):
        raise AssertionError("columns of several lengths")
    for row in range(len(store)):
        with suppress(MoleculeError):
            if (store[row].atoms >= ATOM_DIMS).any():
                raise AssertionError("features that OGB has not")
    if len(rows):
        for ties in ("mean", "floyd-warshall"):
            collate_rows(store, rows, path_ties=ties)


def _write_changed(draw: random.Random, content: bytes, path: Path) -> None:
    """The store through pyarrow, with one thing that pyarrow lets us write and a store has not."""
    reader = pa.ipc.open_file(pa.py_buffer(content))
    schema, batch = reader.schema, reader.get_batch(0)
    columns, options, times = list(batch.columns), pa.ipc.IpcWriteOptions(), 1
    kind = draw.randrange(9)
    at = draw.randrange(len(columns))
    if kind < 6:
        columns[at] = _changed_buffer(draw, columns[at])
    elif kind == 6:
        options = pa.ipc.IpcWriteOptions(compression=draw.choice(("lz4", "zstd")))
    elif kind == 7:
        times = draw.choice((0, 2, 3))
    else:
        columns[at] = _of_another_type(draw, columns[at])
    changed = pa.schema([field.with_type(c.type) for field, c in zip(schema, columns, strict=True)], schema.metadata)
    with suppress(pa.ArrowException), pa.ipc.new_file(str(path), changed, options=options) as writer:
        rows = draw.choice((8, 8, 8, 0, 3)) if draw.random() < 0.2 else 8
        for _ in range(times):
            writer.write_batch(pa.RecordBatch.from_arrays([column[:rows] for column in columns], schema=changed))


def _changed_buffer(draw: random.Random, array: pa.Array) -> pa.Array:
    """An array with another number, or another bit, in one of its buffers; Arrow does not look at them."""
    buffers = array.buffers()
    filled = [i for i, buffer in enumerate(buffers) if buffer is not None and buffer.size]
    if not filled:
        return array
    chosen = draw.choice(filled)
    data = bytearray(buffers[chosen].to_pybytes())
    size = draw.choice((1, 1, 2, 4, 8))
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.randrange(len(data)) // size * size
        number = draw.choice(NUMBERS) if draw.random() < 0.5 else draw.randrange(100)
        data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")[: len(data) - at]
    buffers[chosen] = pa.py_buffer(bytes(data))
    try:
        return _of_buffers(array, buffers)
    except pa.ArrowException:  # Arrow did look
        return array


def _of_buffers(array: pa.Array, buffers: list[Any]) -> pa.Array:
    def build(kind: pa.DataType, length: int, waiting: list[Any], like: pa.Array) -> pa.Array:
        own = [waiting.pop(0) for _ in range(kind.num_buffers)]
        children = []
        if pa.types.is_struct(kind):
            children = [build(kind.field(i).type, length, waiting, like.field(i)) for i in range(kind.num_fields)]
        elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            children = [build(kind.value_type, len(like.values), waiting, like.values)]
        if pa.types.is_dictionary(kind):
            indices = pa.Array.from_buffers(kind.index_type, length, own)
            return pa.DictionaryArray.from_arrays(indices, like.dictionary, safe=False)
        return pa.Array.from_buffers(kind, length, own, children=children)

    return build(array.type, len(array), list(buffers), array)


def _of_another_type(draw: random.Random, array: pa.Array) -> pa.Array:
    kinds = (pa.int8(), pa.string(), pa.list_(pa.uint8()), pa.list_(pa.list_(pa.uint8(), 9)), pa.float64(), pa.binary())
    if draw.random() < 0.3:
        with suppress(pa.ArrowException, TypeError, OverflowError):
            return pa.array([odd_value(draw)] * len(array))
    return pa.nulls(len(array), draw.choice((*kinds, array.type)))
