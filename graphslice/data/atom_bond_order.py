"""The atoms and bonds of many SMILES in the order of their graphs, read in processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from graphslice.chem.atom_bond_order import AtomBondOrder, read_atom_bond_orders
from graphslice.config import GraphConfig
from graphslice.data.atom_bond_labels import AtomBondLabels
from graphslice.data.featurize.pool import Pool, featurizer_pool

# SMILES that a process reads at a time.
_TASK_ROWS = 512


def atom_bond_orders(
    smiles: Sequence[str], level: str, config: GraphConfig, pool: Pool = None, *, with_symmetry: bool = False
) -> list[AtomBondOrder | None]:
    """The orders of the atoms, or bonds, of some SMILES and of their graphs; None of what is no molecule.

    The SMILES are read again for it, which takes about as long as reading them for their graphs.

    Args:
        smiles: any texts.
        level: atom or bond.
        config: how molecules become graphs.
        pool: of :func:`~graphslice.data.featurize.featurizer_pool`; this process when not given.
        alike: also find which are alike.
    """
    work = partial(read_atom_bond_orders, level=level, max_atoms=config.max_atoms, with_symmetry=with_symmetry)
    tasks = [smiles[begin : begin + _TASK_ROWS] for begin in range(0, len(smiles), _TASK_ROWS)]
    if pool is None:
        parts = list(map(work, tasks))
    else:
        futures = [pool.submit(work, task) for task in tasks]
        parts = [part for future in futures for part, _ in future.result()]
    found = [order for part in parts for order in part]
    if config.atom_order == "input":  # graphs have them as they are written
        return [None if order is None else AtomBondOrder(np.arange(len(order))) for order in found]
    return found


def to_graph_order(
    labels: AtomBondLabels, smiles: Sequence[str], config: GraphConfig, names: Sequence[str]
) -> tuple[AtomBondLabels, dict[int, str]]:
    """Labels in the order of the graphs; and why rows are of no use whose lists are of another length, by row.

    Args:
        labels: in the order of the SMILES.
        smiles: of the rows.
        config: how molecules become graphs.
        names: of the targets.
    """
    with featurizer_pool(len(smiles)) as pool:
        orders = atom_bond_orders(smiles, labels.level, config, pool)
    counts = np.array([-1 if order is None else len(order) for order in orders], np.int64)
    return labels.reordered(orders), labels.length_errors(counts, names)
