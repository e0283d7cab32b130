"""Conversion of pandas, polars and Arrow data frames to Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from rdkit import Chem

from graphslice.chem.parse import MoleculeError, mol_to_smiles
from graphslice.errors import InputError

#: Name of a data frame in messages.
NAME = "the data frame"
_ARROW = pa.Table | pa.RecordBatch

#: Reason for rejecting RDKit molecules as input for atom- and bond-level targets.
NO_ATOM_ORDER = (
    "atom- and bond-level values are in the atom order of a SMILES, and these are RDKit molecules: give SMILES, such "
    "as Chem.MolToSmiles(mol), with the values in the order of Chem.MolFromSmiles of that SMILES"
)


def is_frame(value: object) -> bool:
    """True for a pandas or polars data frame, or an Arrow table or batch; checked without importing them."""
    kind = type(value)
    return hasattr(kind, "columns") and any(hasattr(kind, name) for name in ("iloc", "to_pandas"))


def column_names(frame: Any) -> list[str]:
    """Return the column names of a data frame as texts."""
    return [str(name) for name in (frame.schema.names if isinstance(frame, _ARROW) else frame.columns)]


def as_table(frame: Any, indices: Sequence[int] | None = None) -> pa.Table:
    """Convert a data frame to an Arrow table. The row order is kept and the index is ignored.

    Args:
        frame: see :func:`is_frame`.
        indices: column indices; all columns when not given.
    """
    names = column_names(frame)
    indices = range(len(names)) if indices is None else indices
    if not hasattr(frame, "iloc"):
        table = frame if isinstance(frame, _ARROW) else frame.to_arrow()
        columns = [_decoded(table.column(index)) for index in indices]
    else:
        columns = [_cells(frame.iloc[:, index]) for index in indices]
    return pa.table(columns, names=[names[index] for index in indices])


def _decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert a dictionary-encoded column to its value type."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _cells(column: Any) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas column; values of mixed types, or of types that Arrow lacks, become texts."""
    try:
        return _decoded(pa.array(column, from_pandas=True))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        cells = zip(column.tolist(), column.isna().tolist(), strict=True)
        texts = ["" if missing else _text(value) for value, missing in cells]
        return pa.array([text.encode(errors="replace").decode() for text in texts], pa.string())


def _text(value: object) -> str:
    try:
        return mol_to_smiles(value) if isinstance(value, Chem.Mol) else str(value)
    except MoleculeError:
        return ""


def reject_molecules(frame: Any) -> None:
    """Raise :class:`InputError` if a frame holds RDKit molecules, whose atom order is not that of a SMILES."""
    if not hasattr(frame, "iloc"):
        return
    for index in range(frame.shape[1]):
        column = frame.iloc[:, index]
        if column.dtype == object and any(isinstance(cell, Chem.Mol) for cell in column):
            raise InputError(NO_ATOM_ORDER)
