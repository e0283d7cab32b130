"""Clusters of similar molecules, after Taylor (1995) and Butina (1999)."""

from __future__ import annotations

import numpy as np

#: The most molecules that are compared with each other: a bit a pair, 113 MB of them.
MAX_CLUSTERED = 30_000
#: Neighbours are as near as this, in Tanimoto distance of Morgan fingerprints. Of the demo set one pair of 450 is, and
#: its largest cluster has 3 percent of the rows (at 0.7 it has 6, at 0.8 23). DeepChem's split cuts at 0.6 too.
MAX_DISTANCE = 0.6

# Rows that are compared with all others at a time; a multiple of 8.
_BLOCK_ROWS = 1_024


def butina_clusters(fingerprints: np.ndarray, distance: float = MAX_DISTANCE) -> np.ndarray:
    """The cluster of each molecule.

    The molecule with the most neighbours makes a cluster with them, then of what is left the one that had the most,
    and so on; as RDKit's ``Butina.ClusterData``, which takes the later of two with as many first. Members of different
    clusters may well be neighbours of each other.

    Args:
        fingerprints: ``bool [R, bits]``.
        distance: two molecules at most so far apart are neighbours.

    Returns:
        ``int64 [R]``, from 0 in the order in which the clusters were made.
    """
    rows = len(fingerprints)
    neighbours, counts = _neighbours(fingerprints, distance)
    clusters = np.full(rows, -1, np.int64)
    made = 0
    for row in np.lexsort((np.arange(rows), counts))[::-1].tolist():
        if clusters[row] < 0:
            near = np.flatnonzero(np.unpackbits(neighbours[row], count=rows))
            clusters[near[clusters[near] < 0]] = made
            made += 1
    return clusters


def _neighbours(fingerprints: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """``uint8 [R, R / 8]``, a bit for each pair of neighbours, each its own; ``int64 [R]``, how many a row has."""
    bits = np.ascontiguousarray(fingerprints, np.float32)
    rows, sizes = len(bits), bits.sum(axis=1)
    neighbours, counts = np.zeros((rows, (rows + 7) // 8), np.uint8), np.zeros(rows, np.int64)
    for begin in range(0, rows, _BLOCK_ROWS):  # each block with itself and those after it
        end = min(begin + _BLOCK_ROWS, rows)
        both = bits[begin:end] @ bits[begin:].T
        either = sizes[begin:end, None] + sizes[begin:] - both
        # both / either >= 1 - distance, without dividing. Whole numbers as small are exact in float32.
        near = both >= np.float32(1 - distance) * either - np.float32(1e-4)
        neighbours[begin:end, begin // 8 :] = np.packbits(near, axis=1)
        counts[begin:end] += near.sum(axis=1)
        after = near[:, end - begin :]
        neighbours[end:, begin // 8 : (end + 7) // 8] |= np.packbits(after.T, axis=1)
        counts[end:] += after.sum(axis=0)
    return neighbours, counts
