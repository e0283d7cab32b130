"""Learned embeddings of molecules, ``graphslice fingerprint``: the input of the output head of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.lib.format import write_array_header_1_0

from graphslice.atomic_write import atomic_write
from graphslice.data.arrow import number_array, text_array
from graphslice.data.store import GraphStore
from graphslice.data.tables import WRITABLE, TableSink, file_columns
from graphslice.errors import InputError
from graphslice.inference.files import FileReport, check_output, featurized_table, write_rows
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
        out: a ``.npy``, CSV, TSV, Excel or Parquet file, written atomically; or a sink. None writes CSV to stdout.
        smiles_column, workers, overwrite, progress: as in :func:`~graphslice.inference.files.predict_file`.

    Returns:
        The number of rows, of failed rows, and notes for the user.

    Raises:
        InputError: if the input cannot be read or the output cannot be written.
    """
    check_output(source, out, overwrite)
    matrix = out if isinstance(out, Path) and out.suffix == MATRIX_SUFFIX else None
    if matrix is None and isinstance(out, Path) and not out.name.lower().endswith(WRITABLE):
        raise InputError(f"cannot write {out}: its name must end in {', '.join((MATRIX_SUFFIX, *WRITABLE))}")
    new_columns = [] if matrix else [*map(embedding_column, range(predictor.networks.width)), "error"]
    with featurized_table(predictor, source, smiles_column, new_columns, workers) as (chunks, notes):
        if matrix is not None:
            report = _write_matrix(predictor, chunks, matrix, progress)
        else:
            report = write_rows((_append_embeddings(predictor, *one) for one in chunks), out, progress)
        return replace(report, notes=notes())


def embedding_column(number: int) -> str:
    """Return the column name of a feature of the embedding, numbered from 0."""
    return f"embedding_{number}"


def _append_embeddings(predictor: Predictor, chunk: pa.Table, store: GraphStore) -> pa.Table:
    """Append embedding columns and the column ``error`` to a chunk of a table."""
    chunk = file_columns(chunk)
    for c, values in enumerate(compute_embeddings(predictor, store).T):
        chunk = chunk.append_column(embedding_column(c), number_array(values, np.isfinite(values)))
    return chunk.append_column("error", text_array(_row_errors(store)))


def _write_matrix(
    predictor: Predictor,
    chunks: Iterable[tuple[pa.Table, GraphStore]],
    out: Path,
    progress: Callable[[int], None] | None,
) -> FileReport:
    """Write the embeddings of all chunks to one ``.npy`` file."""
    report, rows = FileReport(), 0
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        for chunk, store in chunks:
            embeddings = np.ascontiguousarray(compute_embeddings(predictor, store))
            header = {"descr": embeddings.dtype.str, "fortran_order": False, "shape": (rows, embeddings.shape[1])}
            if not rows:
                write_array_header_1_0(file, header)
            embeddings.tofile(file)
            rows += len(embeddings)
            report.add(_row_errors(store))
            if progress:
                progress(len(chunk))
        file.seek(0)  # NumPy leaves room for the number of rows
        write_array_header_1_0(file, header | {"shape": (rows, embeddings.shape[1])})
    return report


def _row_errors(store: GraphStore) -> list[str | None]:
    return [store.errors.get(row) for row in range(len(store))]
