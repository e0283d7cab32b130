"""Labelled datasets from PyTorch Geometric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphslice.config import MOLECULE, DataConfig
from graphslice.data.columns import MAX_MAGNITUDE, check_unique
from graphslice.data.infer_tasks import infer_tasks_from_values
from graphslice.data.labelled_dataset import LabelledDataset, reject_unlabelled
from graphslice.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphslice.chem import MolGraph


def _graph_targets(item: Data, row: int) -> np.ndarray:
    """Return the targets of a graph, ``float64 [T]``; a single nan if it has none."""
    y = getattr(item, "y", None)
    import torch  # not needed for tables

    try:
        return np.array([np.nan]) if y is None else torch.as_tensor(y).detach().cpu().numpy().astype(float).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"y of the graph at index {row} does not hold numbers: {y!r}"[:200]) from None


def dataset_from_pyg(
    data: Iterable[Data], targets: Sequence[str] | None = None, config: DataConfig | None = None
) -> LabelledDataset:
    """Load labelled molecules from a PyG dataset or a list of ``Data`` with OGB features and ``y``.

    Args:
        data: graphs with ``x``, ``edge_index``, ``edge_attr`` in the format of :meth:`MolGraph.to_pyg`,
            and ``y`` of T numbers, nan where unknown. The order of atoms is kept.
        targets: T names; y0, y1, ... when not given (y for a single target).
        config: data settings of the user.

    Raises:
        InputError: if no graph is usable, the numbers of targets differ, or atom- or bond-level targets are configured.
    """
    if config is not None and config.level != MOLECULE:
        raise InputError(
            f"PyG data has molecule-level labels: --level {config.level} needs a table with lists of numbers"
        )
    from graphslice.chem.molecule import EMPTY_GRAPH
    from graphslice.chem.parse import MoleculeError
    from graphslice.data.pyg import from_pyg

    graphs: list[MolGraph] = []
    rejected: dict[int, str] = {}
    rows: list[np.ndarray] = []
    for row, item in enumerate(data):
        rows.append(_graph_targets(item, row))
        try:
            graphs.append(from_pyg(item))
        except MoleculeError as reason:
            graphs.append(EMPTY_GRAPH)
            rejected[row] = str(reason)
    widths = sorted({len(row) for row in rows})
    if not rows:
        raise InputError("the PyG dataset is empty")
    if len(widths) > 1:
        raise InputError(f"the graphs of the PyG dataset have different numbers of targets: {widths}")
    values = np.stack(rows)
    values[np.abs(values) > MAX_MAGNITUDE] = np.nan
    rejected = reject_unlabelled(values, rejected)
    if len(rejected) == len(rows):
        raise InputError(f"no graph of the PyG dataset can be used; the first: {rejected[0]}")
    names = list(targets) if targets else ["y"] if widths == [1] else [f"y{i}" for i in range(widths[0])]
    check_unique(names, names, "the PyG dataset")
    if len(names) != widths[0]:
        raise InputError(f"{len(names)} target names for {widths[0]} targets: {json.dumps(names)}")
    tasks = infer_tasks_from_values(values, names, config or DataConfig(), "the PyG dataset")
    return LabelledDataset("pyg", [], values, tasks, rejected, graphs=graphs)
