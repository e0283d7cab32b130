"""Labelled molecules in Python: data frames, mappings of columns, files, pairs of SMILES and labels, PyG graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from graphslice.config import MOLECULE, join_names
from graphslice.data.columns import label_names, target_names
from graphslice.data.loaders import as_table, is_frame
from graphslice.errors import InputError
from graphslice.inference.inputs import as_molecules, each_molecule, frame_rows, is_graph

if TYPE_CHECKING:
    from pandas import DataFrame


def as_dataset(data: Any, targets: str | None, level: str) -> tuple[Any, dict[str, Any]]:
    """Return labelled molecules as a data frame or PyG graphs (None for a file), and what they change of the settings
    of the section data, such as ``targets``. Labels of another ``level`` than molecule are lists of numbers."""
    if data is None or is_frame(data):
        return data, {}
    if isinstance(data, str | Path):
        return None, {"dataset": str(data)}
    if isinstance(data, Mapping):
        return _to_frame(data), {}
    if isinstance(data, tuple) and len(data) == 2:
        table = labelled_table(*data, target_names(targets, ()) or None, level)
        return table, {"smiles_column": table.column_names[0], "targets": join_names(table.column_names[1:])}
    items = each_molecule(data if hasattr(data, "__iter__") or hasattr(data, "__getitem__") else ())
    if hasattr(first := next(items, None), "edge_index"):
        return chain([first], items), {}
    raise InputError(
        "labelled molecules are a data frame, a path, a pair of SMILES and labels, or PyG graphs with y, not "
        f"{type(data).__name__}"
    )


def labelled_table(smiles: Any, labels: Any, targets: Sequence[str] | None = None, level: str = MOLECULE) -> pa.Table:
    """Build an Arrow table of R SMILES and labels ``[R]`` or ``[R, T]``: a SMILES column, and one column per target.

    The names of the targets are by default those of the Series or data frame, else ``y``, or ``y0``, ``y1``, ...
    """
    if is_frame(smiles):
        rows, column = frame_rows(smiles, level=level)
        smiles = rows.smiles(column)
    molecules = as_molecules(smiles, level)
    if any(is_graph(molecule) for molecule in molecules):
        raise InputError("labels belong to SMILES: give PyG graphs their labels as y")
    try:
        values = label_array(labels) if level == MOLECULE else _ragged_labels(labels)
    except ValueError:
        raise InputError(
            "labels are lists of different lengths: give level='atom' or 'bond' to train on them"
        ) from None
    if values.ndim not in (1, 2) or len(values) != len(molecules):
        raise InputError(
            f"labels have shape {list(values.shape)}, but there are {len(molecules)} SMILES: give one label per SMILES"
        )
    if targets is None:
        targets = getattr(labels, "columns", ())
        if values.ndim == 1:  # the name of a pandas Series may be a number, that of a polars Series empty
            targets = () if (name := getattr(labels, "name", None)) in (None, "") else [name]
    columns = values.reshape(len(values), -1).T
    targets = label_names([*targets], len(columns), "the table of labels")
    # A name for the SMILES column that no target has.
    first = next(name for name in ("smiles", "SMILES", "the SMILES") if name not in targets)
    texts = [molecule if isinstance(molecule, str) else "" for molecule in molecules]
    return as_table(_to_frame(dict(zip([first, *targets], [texts, *columns], strict=True))))


def label_array(labels: Any) -> np.ndarray:
    """Return labels as an array, of objects if a masked array or a list of texts may lack some."""
    array = np.asarray(labels)
    if isinstance(labels, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(labels), np.nan, array.astype(object))
    # An array of texts would have the text nan where a list has a missing value.
    return np.asarray(labels, object) if array.dtype.kind == "U" and isinstance(labels, list | tuple) else array


def _ragged_labels(labels: Any) -> np.ndarray:
    """Return lists, ``object [R]``, of a frame ``[R, T]``; an array of numbers would turn equal lengths into T."""
    if hasattr(labels, "iloc") and labels.ndim == 2:
        return labels.to_numpy(object)
    lists = (list(label) if isinstance(label, tuple | np.ndarray) else label for label in labels)
    return np.fromiter(lists, object, len(labels))


def _to_frame(columns: Mapping[str, Any]) -> DataFrame:
    """Build a data frame from columns by name; rows are numbered, and the index of a Series is ignored."""
    import pandas as pd

    return pd.DataFrame({name: one.array if isinstance(one, pd.Series) else one for name, one in columns.items()})


def name_setting(names: Any) -> str | None:
    """Return one or several column names, which may be numbers, as a configuration has them."""
    if names is None or isinstance(names, str):
        return names
    return join_names([str(name) for name in (names if isinstance(names, Iterable) else [names])])
