"""What is given to a model in Python: graphs, and columns beside the molecules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from graphslice.chem.molecule import MolGraph
from graphslice.data.columns import as_descriptors, listed
from graphslice.errors import InputError, nearest

#: Numbers by the name of a column, None or nan where unknown.
Columns: TypeAlias = Mapping[str, Sequence[float | None] | np.ndarray]


def given_columns(names: Sequence[str], given: Columns, rows: int) -> dict[str, np.ndarray]:
    """``float32 [R]`` by each name of a column that a model reads, nan where unknown.

    Args:
        names: of the columns.
        given: by name, numbers or None.
        rows: R.

    Raises:
        InputError: for a column that is missing, not read by the model, of another length or without numbers.
    """
    if missing := [name for name in names if name not in given]:
        raise InputError(
            f"the model reads the column{'s' * (len(missing) > 1)} {listed(missing)} beside the molecule: "
            'give a table that has it, or in Python predict(molecules, columns={"name": values})'
        )
    found = {}
    for name, values in given.items():
        if name not in names:
            raise InputError(f"the model reads no column {name!r}{nearest(name, names)}: it has {listed(names)}")
        try:
            numbers = np.atleast_1d(np.array(values, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"the column {name!r} holds values that are no numbers") from None
        if numbers.shape != (rows,):
            raise InputError(f"the column {name!r} has the shape {list(numbers.shape)} for {rows} molecules")
        found[name] = as_descriptors([numbers])[:, 0]
    return {name: found[name] for name in names}


def each_graph(given: object) -> list:
    """The graphs of a batch of PyG, or what is given."""
    return given.to_data_list() if hasattr(given, "to_data_list") else [given]


def is_graph(molecule: object) -> bool:
    """Whether it is a :class:`MolGraph` or a PyG ``Data``; told without importing PyG, which takes seconds."""
    return isinstance(molecule, MolGraph) or hasattr(molecule, "edge_index")
