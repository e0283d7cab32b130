"""Taylor-Butina clustering of fingerprints (Taylor 1995, Butina 1999)."""

from __future__ import annotations

import numpy as np

#: Maximum number of molecules: the neighbour matrix has one bit per pair, 113 MB in total.
MAX_CLUSTERED = 30_000
#: Maximum Tanimoto distance of Morgan fingerprints between neighbours. In the demo set, one of 450 pairs is within this
#: distance, and the largest cluster has 3% of the rows (6% at 0.7, 23% at 0.8). DeepChem's Butina split uses 0.6 too.
MAX_DISTANCE = 0.6

# Rows compared with all others at a time; a multiple of 8.
_BLOCK_ROWS = 1_024


def butina_clusters(fingerprints: np.ndarray, distance: float = MAX_DISTANCE) -> np.ndarray:
    """Cluster molecules with the Taylor-Butina algorithm.

    The molecule with the most neighbours forms a cluster with them; then, among the unassigned molecules, the one that
    had the most neighbours at the start forms the next cluster with its unassigned neighbours, and so on. Ties are
    broken as in RDKit's ``Butina.ClusterData``: the later molecule comes first. Molecules of different clusters can be
    neighbours.

    Args:
        fingerprints: ``bool [R, bits]``.
        distance: maximum Tanimoto distance between neighbours.

    Returns:
        ``int64 [R]``, cluster index of each molecule, from 0 in the order in which the clusters are formed.
    """
    rows = len(fingerprints)
    neighbours, counts = _neighbours(fingerprints, distance)
    clusters = np.full(rows, -1, np.int64)
    num_clusters = 0
    for row in np.lexsort((np.arange(rows), counts))[::-1].tolist():
        if clusters[row] < 0:
            near = np.flatnonzero(np.unpackbits(neighbours[row], count=rows))
            clusters[near[clusters[near] < 0]] = num_clusters
            num_clusters += 1
    return clusters


def _neighbours(fingerprints: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute the neighbours of each row, itself included: bits ``uint8 [R, R / 8]`` and counts ``int64 [R]``."""
    bits = np.ascontiguousarray(fingerprints, np.float32)
    rows, sizes = len(bits), bits.sum(axis=1)
    neighbours, counts = np.zeros((rows, (rows + 7) // 8), np.uint8), np.zeros(rows, np.int64)
    for start in range(0, rows, _BLOCK_ROWS):  # each block is compared with itself and the later rows
        end = min(start + _BLOCK_ROWS, rows)
        both = bits[start:end] @ bits[start:].T
        either = sizes[start:end, None] + sizes[start:] - both
        # both / either >= 1 - distance, without division. Integers of this size are exact in float32.
        near = both >= np.float32(1 - distance) * either - np.float32(1e-4)
        neighbours[start:end, start // 8 :] = np.packbits(near, axis=1)
        counts[start:end] += near.sum(axis=1)
        after = near[:, end - start :]
        neighbours[end:, start // 8 : (end + 7) // 8] |= np.packbits(after.T, axis=1)
        counts[end:] += after.sum(axis=0)
    return neighbours, counts
