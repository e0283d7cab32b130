"""Mapping of the atom and bond order of many SMILES to that of their graphs, computed in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from graphslice.chem.atom_bond_order import AtomBondOrder, read_atom_bond_orders
from graphslice.config import GraphConfig
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.featurize.pool import Pool, featurizer_pool

# Number of SMILES per task of a worker process.
_TASK_ROWS = 512


def atom_bond_orders(
    smiles: Sequence[str], level: str, config: GraphConfig, pool: Pool = None, *, with_symmetry: bool = False
) -> list[AtomBondOrder | None]:
    """Compute the mapping from the atom (or bond) order of each SMILES to that of its graph; None if it is invalid.

    The SMILES are parsed again, which takes about as long as featurization.

    Args:
        smiles: any texts.
        level: ``atom`` or ``bond``.
        config: graph settings.
        pool: pool of :func:`~graphslice.data.featurize.featurizer_pool`; the current process when not given.
        with_symmetry: also find symmetry-equivalent atoms (or bonds).
    """
    work = partial(read_atom_bond_orders, level=level, max_atoms=config.max_atoms, with_symmetry=with_symmetry)
    tasks = [smiles[begin : begin + _TASK_ROWS] for begin in range(0, len(smiles), _TASK_ROWS)]
    if pool is None:
        parts = list(map(work, tasks))
    else:
        futures = [pool.submit(work, task) for task in tasks]
        parts = [part for future in futures for part, _ in future.result()]
    orders = [order for part in parts for order in part]
    if config.atom_order == "input":  # graphs keep the order of the SMILES
        return [None if order is None else AtomBondOrder(np.arange(len(order))) for order in orders]
    return orders


def to_graph_order(
    labels: AtomBondLabels, smiles: Sequence[str], config: GraphConfig, names: Sequence[str]
) -> tuple[AtomBondLabels, dict[int, str]]:
    """Sort labels from the order of the SMILES into that of the graphs.

    Args:
        labels: labels in the order of the SMILES.
        smiles: SMILES of the rows.
        config: graph settings.
        names: names of the targets.

    Returns:
        The sorted labels; the reason, by row, for rows whose lists do not have the length of their molecule.
    """
    with featurizer_pool(len(smiles)) as pool:
        orders = atom_bond_orders(smiles, labels.level, config, pool)
    counts = np.array([-1 if order is None else len(order) for order in orders], np.int64)
    return labels.reordered(orders), labels.length_errors(counts, names)
