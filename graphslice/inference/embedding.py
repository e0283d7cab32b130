"""Learned embeddings of molecules, ``graphslice fingerprint``: the input of the output head of a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphslice.atomic_write import atomic_write
from graphslice.data.arrow import number_array, text_array
from graphslice.data.columns import FeatureColumns
from graphslice.data.featurize import Pool, featurize_stream, featurizer_pool
from graphslice.data.store import GraphStore
from graphslice.data.tables import TableSink, TableStream, file_columns, malformed_rows, open_table
from graphslice.inference.files import FileReport, check_output, chunk_smiles, input_columns, write_rows
from graphslice.inference.predictor import Predictor

#: Suffix of an output file that holds only the embedding matrix.
MATRIX_SUFFIX = ".npy"


def compute_embeddings(predictor: Predictor, store: GraphStore) -> np.ndarray:
    """Compute the embeddings of all molecules of a store.

    Args:
        predictor: the model.
        store: featurized as its ``config.graph`` says.

    Returns:
        ``float32 [R, C]``: the graph readout after the last norm, followed by the encoded descriptors if the model
        reads any; those of ensemble members are concatenated. Rows of invalid molecules are nan.
    """
    embeddings = np.full((len(store), predictor.networks.width), np.nan, dtype=np.float32)
    rows = np.flatnonzero(store.sizes > 0)
    embeddings[rows] = predictor.networks.embed(store, rows)
    return embeddings


def embed_file(
    predictor: Predictor,
    source: Path | Sequence[str],
    out: Path | TableSink | None,
    *,
    smiles_column: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> FileReport:
    """Compute the embeddings of all rows of a table and write them to a file.

    A ``.npy`` file holds only the matrix of :func:`compute_embeddings`. A table holds the input columns, followed by
    ``embedding_0``, ``embedding_1``, ... and ``error``.

    Args:
        predictor: the model.
        source: a CSV, TSV, Excel, Parquet, SDF or ``.smi`` file, a folder of such files, or a list of SMILES.
        out: a ``.npy``, CSV, TSV or Parquet file, written atomically; or a sink. None writes CSV to stdout.
        smiles_column, workers, overwrite, progress: as in :func:`~graphslice.inference.files.predict_file`.

    Returns:
        The number of rows, of failed rows, and notes for the user.

    Raises:
        InputError: if the input cannot be read or the output cannot be written.
    """
    check_output(source if isinstance(source, Path) else None, out, overwrite)
    name = str(source) if isinstance(source, Path) else "the list of SMILES"
    if isinstance(source, Path):
        opened: AbstractContextManager[TableStream] = open_table(source)
    else:
        chunks = iter([pa.table({"smiles": text_array(source)})])
        opened = nullcontext(TableStream(["smiles"], chunks, len(source)))
    with opened as table:
        new_columns = [*map(embedding_column, range(predictor.networks.width)), "error"]
        matrix = out if isinstance(out, Path) and out.suffix == MATRIX_SUFFIX else None
        column, features = input_columns(predictor, table, smiles_column, name, [] if matrix else new_columns)
        with featurizer_pool(table.estimated_rows, workers, predictor.kinds) as pool:
            chunks = _embed_chunks(predictor, table, column, features, pool)
            if matrix is not None:
                report = _write_matrix(chunks, matrix, progress)
            else:
                report = write_rows((_append_embeddings(*chunk) for chunk in chunks), out, progress)
        return replace(report, notes=[*table.notes, *features.notes()])


def embedding_column(number: int) -> str:
    """Return the column name of a feature of the embedding, numbered from 0."""
    return f"embedding_{number}"


def _embed_chunks(
    predictor: Predictor, table: TableStream, column: int, features: FeatureColumns, pool: Pool
) -> Iterator[tuple[pa.Table, np.ndarray, list[str | None]]]:
    """Yield the chunks of a table with the embeddings and error messages of their rows."""
    originals, for_smiles, *for_features = itertools.tee(table.chunks, 3 if features.names else 2)
    columns = None
    if features.names:
        columns = (dict(zip(features.names, features.parse(chunk).T, strict=True)) for chunk in for_features[0])
    smiles = (chunk_smiles(chunk, column) for chunk in for_smiles)
    stores = featurize_stream(smiles, predictor.config.graph, pool=pool, kinds=predictor.kinds, columns=columns)
    for chunk, (store, messages) in zip(originals, stores, strict=True):
        malformed = malformed_rows(chunk)
        errors = [malformed.get(row, message) for row, message in enumerate(messages)]
        yield file_columns(chunk), compute_embeddings(predictor, store), errors


def _append_embeddings(chunk: pa.Table, embeddings: np.ndarray, errors: list[str | None]) -> pa.Table:
    """Append embedding columns and the column ``error`` to a chunk of a table."""
    for c, values in enumerate(embeddings.T):
        chunk = chunk.append_column(embedding_column(c), number_array(values, np.isfinite(values)))
    return chunk.append_column("error", text_array(errors))


def _write_matrix(
    chunks: Iterator[tuple[pa.Table, np.ndarray, list[str | None]]], out: Path, progress: Callable[[int], None] | None
) -> FileReport:
    """Write the embeddings of all chunks to one ``.npy`` file."""
    report, parts = FileReport(0, 0, None), []
    with atomic_write(out) as temporary:
        for _, embeddings, errors in chunks:
            parts.append(embeddings)
            report.add(errors)
            if progress:
                progress(len(errors))
        with temporary.open("wb") as file:
            np.save(file, np.concatenate(parts))
    return report
