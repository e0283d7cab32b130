"""Labelled molecules in Python: data frames, mappings of columns, files, and pairs of SMILES and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from graphslice.config import join_names
from graphslice.data.columns import check_unique
from graphslice.data.loaders import as_table, is_frame
from graphslice.errors import InputError
from graphslice.inference.inputs import as_molecules, frame_smiles, is_graph


def as_dataset(data: Any, targets: str | Sequence[str] | None, lists: bool) -> tuple[Any, dict[str, str | None]]:
    """Return labelled molecules as a data frame (None for a file), and the settings of the section data that name the
    dataset and its columns. ``lists``: every label is a list of numbers (atom- or bond-level targets)."""
    target_setting = name_setting(targets)
    if isinstance(data, tuple) and len(data) == 2:
        table = labelled_table(*data, None if targets is None else name_list(targets), lists=lists)
        return table, {"smiles_column": table.column_names[0], "targets": join_names(table.column_names[1:])}
    if isinstance(data, Mapping):
        return _to_table(data), {"targets": target_setting}
    if is_frame(data):
        return data, {"targets": target_setting}
    if isinstance(data, str | Path):
        return None, {"targets": target_setting, "dataset": str(data)}
    raise InputError(
        f"labelled molecules are a data frame, a path, or a pair of SMILES and labels, not {type(data).__name__}; "
        "graphslice.train(config, out, data=graphs) trains on PyG graphs"
    )


def labelled_table(smiles: Any, labels: Any, targets: Sequence[str] | None = None, *, lists: bool = False) -> pa.Table:
    """Build an Arrow table of R SMILES and labels ``[R]`` or ``[R, T]``: a SMILES column, and one column per target.

    The names of the targets are by default those of the Series or data frame, else ``y``, or ``y0``, ``y1``, ...
    """
    molecules = frame_smiles(smiles) if is_frame(smiles) else as_molecules(smiles)
    if any(is_graph(molecule) for molecule in molecules):
        raise InputError("labels belong to SMILES: graphslice.train(config, out, data=graphs) trains on PyG graphs")
    try:
        values = _ragged_labels(labels) if lists else _unmasked(labels)
    except ValueError:
        raise InputError(
            "labels are lists of different lengths: give level='atom' or 'bond' to train on them"
        ) from None
    if values.ndim not in (1, 2) or len(values) != len(molecules):
        raise InputError(
            f"labels have shape {list(values.shape)}, but there are {len(molecules)} SMILES: give one label per SMILES"
        )
    if targets is None:
        width = 1 if values.ndim == 1 else values.shape[1]
        names = getattr(labels, "columns", None)
        if values.ndim == 1:  # the name of a pandas Series may be a number, that of a polars Series empty
            names = None if (name := getattr(labels, "name", None)) in (None, "") else [name]
        targets = ["y"] if names is None and width == 1 else [f"y{i}" for i in range(width)] if names is None else names
        targets = [str(name) for name in targets]
    columns = values.reshape(len(values), -1).T
    if len(targets) != len(columns):
        raise InputError(f"{len(targets)} names for {len(columns)} targets: {', '.join(targets)}")
    check_unique(targets, targets, "the table of labels")
    # A name for the SMILES column that no target has.
    first = next(name for name in ("smiles", "SMILES", "the SMILES") if name not in targets)
    texts = [molecule if isinstance(molecule, str) else "" for molecule in molecules]
    return _to_table(dict(zip([first, *targets], [texts, *columns], strict=True)))


def _unmasked(labels: Any) -> np.ndarray:
    """Return labels as an array, with nan where a masked array has none."""
    masked = isinstance(labels, np.ma.MaskedArray) and np.ma.is_masked(labels)
    return labels.astype(np.float64).filled(np.nan) if masked else np.asarray(labels)


def _ragged_labels(labels: Any) -> np.ndarray:
    """Return labels as ``object [R]`` of lists; a numeric array would turn lists of equal length into targets."""
    values = np.empty(len(labels), object)
    for row, label in enumerate(labels):
        values[row] = list(label) if isinstance(label, tuple | np.ndarray) else label
    return values


def _to_table(columns: Mapping[str, Any]) -> pa.Table:
    """Build an Arrow table from columns by name; rows are numbered, and the index of a Series is ignored."""
    import pandas as pd

    values = {name: one.reset_index(drop=True) if isinstance(one, pd.Series) else one for name, one in columns.items()}
    lengths = {name: len(one) for name, one in values.items() if isinstance(one, Sized) and not isinstance(one, str)}
    if len({*lengths.values()}) > 1:  # pandas would pad the shorter Series
        counts = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise InputError(f"the columns do not form a table: their lengths are {counts}")
    return as_table(pd.DataFrame(values))


def name_setting(names: Any) -> str | None:
    """Return one or several column names, which may be numbers, as a configuration has them."""
    return names if names is None or isinstance(names, str) else join_names(name_list(names))


def name_list(names: Any) -> list[str]:
    """Return one or several column names, which may be numbers, as texts."""
    single = isinstance(names, str) or not isinstance(names, Iterable)
    return [str(name) for name in ([names] if single else names)]
