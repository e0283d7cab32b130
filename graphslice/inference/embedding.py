"""Embeddings: what the head of a network reads of a molecule, for other models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from graphslice.atomic_write import atomic_write
from graphslice.batch import GraphBatch
from graphslice.data.arrow import number_array, text_array
from graphslice.data.columns import FeatureColumns
from graphslice.data.featurize import featurize_stream, featurizer_pool
from graphslice.data.featurize.pool import Pool
from graphslice.data.store import GraphStore
from graphslice.data.tables import TableStream, file_columns, malformed_rows, open_table
from graphslice.inference.batches import for_each_batch
from graphslice.inference.files import (
    FileReport,
    check_feature_columns,
    chunk_smiles,
    reject_input_as_output,
    smiles_column_index,
    write_rows,
)
from graphslice.inference.predictor import Predictor

#: How the name of a file of a matrix alone ends.
MATRIX_SUFFIX = ".npy"


def compute_embeddings(predictor: Predictor, store: GraphStore) -> np.ndarray:
    """``float32 [R, C]``: the readouts after the last norm of each molecule of a store, then the encoded descriptors
    where the model reads some; of several models theirs, side by side. Nan of what is no molecule.

    Args:
        predictor: whose networks read them.
        store: made as its ``config.graph`` says.
    """
    width = sum(model.width for model in predictor.models)
    found = np.full((len(store), width), np.nan, dtype=np.float32)
    present = np.flatnonzero(store.sizes > 0)
    rows = np.empty((len(present), width), dtype=np.float32)

    def of_batch(batch: GraphBatch) -> np.ndarray:
        batch = batch.to(predictor.device, non_blocking=True)
        with torch.inference_mode():
            return (
                torch.cat([model.compute_embeddings(batch).float() for model in predictor.models], dim=1).cpu().numpy()
            )

    for_each_batch(predictor.config, predictor.device, store, present, of_batch, rows)
    found[present] = rows
    return found


def embed_file(
    predictor: Predictor,
    source: Path | Sequence[str],
    out: Path | None,
    *,
    smiles_column: str | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """The embedding of every row of a table of molecules, in its order.

    A ``.npy`` file holds the matrix of :func:`compute_embeddings` alone; a table holds the rows as they were, then the
    columns ``embedding_0`` and so on, and ``error``.

    Args:
        predictor: the model.
        source: a CSV, TSV, Parquet or ``.smi`` file, or a folder of such; or some SMILES.
        out: a ``.npy``, CSV, TSV or Parquet file, which appears when whole. None: CSV on stdout.
        smiles_column, workers, progress: as of :func:`~graphslice.inference.files.predict_file`.

    Raises:
        InputError: if either file cannot be used.
    """
    name = str(source) if isinstance(source, Path) else "the list of SMILES"
    if isinstance(source, Path):
        reject_input_as_output(source, out)
        opened: AbstractContextManager[TableStream] = open_table(source)
    else:
        chunks = iter([pa.table({"smiles": text_array(source)})])
        opened = nullcontext(TableStream(["smiles"], chunks, len(source)))
    with opened as table:
        added = [*map(_name, range(sum(model.width for model in predictor.models))), "error"]
        column = smiles_column_index(predictor, table, smiles_column, name, [] if _is_matrix(out) else added)
        check_feature_columns(predictor.feature_columns, table.columns, name)
        own = FeatureColumns(predictor.feature_columns)
        with featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool:
            embedded = _embed_chunks(predictor, table, column, own, pool)
            if out is not None and _is_matrix(out):
                report = _write_matrix(embedded, out, progress)
            else:
                report = write_rows((_append_embeddings(*each) for each in embedded), out, progress)
        return replace(report, notes=own.notes())


def _is_matrix(out: Path | None) -> bool:
    return out is not None and out.suffix == MATRIX_SUFFIX


def _name(number: int) -> str:
    return f"embedding_{number}"


def _embed_chunks(
    predictor: Predictor, table: TableStream, column: int, own: FeatureColumns, pool: Pool
) -> Iterator[tuple[pa.Table, np.ndarray, list[str | None]]]:
    """The chunks of a table, the embeddings of their rows, and why one has none."""
    kept, parsed, *read = itertools.tee(table.chunks, 3 if own.names else 2)
    more = (dict(zip(own.names, own.parse(chunk).T, strict=True)) for chunk in read[0]) if own.names else None
    smiles = (chunk_smiles(chunk, column) for chunk in parsed)
    stores = featurize_stream(smiles, predictor.config.graph, pool=pool, kinds=predictor.kinds, columns=more)
    for chunk, (store, reasons) in zip(kept, stores, strict=True):
        malformed = malformed_rows(chunk)
        errors = [malformed.get(row, reason) for row, reason in enumerate(reasons)]
        yield file_columns(chunk), compute_embeddings(predictor, store), errors


def _append_embeddings(chunk: pa.Table, embeddings: np.ndarray, errors: list[str | None]) -> pa.Table:
    for c, values in enumerate(embeddings.T):
        chunk = chunk.append_column(_name(c), number_array(values, np.isfinite(values)))
    return chunk.append_column("error", text_array(errors))


def _write_matrix(
    embedded: Iterator[tuple[pa.Table, np.ndarray, list[str | None]]],
    out: Path,
    progress: Callable[[int], None] | None,
) -> FileReport:
    report, parts = FileReport(0, 0, None), []
    with atomic_write(out) as temporary:
        for _, embeddings, errors in embedded:
            parts.append(embeddings)
            report.add(errors)
            if progress:
                progress(len(errors))
        with temporary.open("wb") as file:
            np.save(file, np.concatenate(parts))
    return report
