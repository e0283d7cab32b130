"""Data frames of pandas, polars or Arrow as tables, and as labelled molecules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from rdkit import Chem

from graphslice.chem.parse import MoleculeError
from graphslice.chem.rdkit_molecules import mol_to_smiles
from graphslice.config import MOLECULE, DataConfig
from graphslice.data.dataset_loaders import dataset_from_chunks
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.labels import find_columns
from graphslice.data.splits import SPLIT_METHODS
from graphslice.errors import InputError
from graphslice.tasks import Task

#: What messages call it.
NAME = "the data frame"
_ARROW = pa.Table | pa.RecordBatch

#: Why RDKit's molecules are no input where atoms and bonds are asked about.
NO_ATOM_ORDER = (
    "atoms and bonds are in the order of a SMILES, and these are RDKit molecules: give SMILES, such as "
    "Chem.MolToSmiles(mol) and what belongs to Chem.MolFromSmiles of that"
)


def is_frame(given: object) -> bool:
    """Whether it is a data frame of pandas or polars, or a table or batch of Arrow; told without importing them."""
    kind = type(given)
    return hasattr(kind, "columns") and any(hasattr(kind, name) for name in ("iloc", "to_pandas"))


def column_names(frame: Any) -> list[str]:
    """The names of a frame's columns, as texts."""
    return [str(name) for name in (frame.schema.names if isinstance(frame, _ARROW) else frame.columns)]


def as_table(frame: Any, places: Sequence[int] | None = None) -> pa.Table:
    """The cells of a data frame, in its order, whatever its index.

    Args:
        frame: see :func:`is_frame`.
        places: of its columns; all of them when not given.
    """
    names = column_names(frame)
    places = range(len(names)) if places is None else places
    if not hasattr(frame, "iloc"):
        whole = frame if isinstance(frame, _ARROW) else frame.to_arrow()
        columns = [whole.column(place) for place in places]
    else:
        columns = [_cells(frame.iloc[:, place]) for place in places]
    return pa.table([_plain(column) for column in columns], names=[names[place] for place in places])


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Words in place of categories."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _cells(column: Any) -> pa.Array | pa.ChunkedArray:
    """A column of pandas; values of several types, or of such that Arrow has not, become texts."""
    try:
        return pa.array(column, from_pandas=True)
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
    """Raise :class:`InputError` if a frame holds RDKit's molecules: their order of atoms is not that of a SMILES."""
    if not hasattr(frame, "iloc"):
        return
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if column.dtype == object and any(isinstance(cell, Chem.Mol) for cell in column):
            raise InputError(NO_ATOM_ORDER)


def dataset_from_frame(frame: Any, config: DataConfig, tasks: Sequence[Task] | None = None) -> LabelledDataset:
    """The labelled molecules of a data frame: all is found as in a file of the same cells.

    Args:
        frame: see :func:`is_frame`.
        config: what the user said of its columns.
        tasks: as of :func:`~graphslice.data.dataset_loaders.load_dataset`.

    Returns:
        The source; its ``table`` has the columns that are used, for a file from which the same source is made.

    Raises:
        InputError: as for a table.
    """
    if config.valid_file or config.test_file:
        raise InputError("valid_file and test_file go with files: give the data frame a column split in their place")
    if config.level != MOLECULE:
        reject_molecules(frame)
    table = as_table(frame)
    if not len(table):
        raise InputError(f"{NAME} has no rows")
    columns = find_columns(table.column_names, config, NAME, SPLIT_METHODS)
    dataset = dataset_from_chunks([table], columns, config, NAME, tasks)
    used = [columns.smiles, *dataset.target_names, *([columns.split] if columns.split else []), *columns.descriptors]
    return replace(dataset, table=table.select(list(dict.fromkeys(used))))
