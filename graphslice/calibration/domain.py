"""Applicability domain of a model: Tanimoto similarity of a molecule to its nearest training molecule.

A molecule is inside the domain if this similarity reaches a threshold that is derived from the training set, and if
the molecule is not much larger than every training molecule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from graphslice.errors import InputError
from graphslice.stacking.trees import check_arrays, form
from graphslice.system.threads import parallel_for

#: Bits of a fingerprint.
DOMAIN_BITS = 1_024
#: Most training molecules stored with a model; a larger training set is subsampled at random.
MAX_TRAINING_MOLECULES = 10_000
#: The threshold is this quantile of the nearest-neighbour similarities within a sample of the training molecules.
_OUTSIDE_FRACTION = 0.05
_THRESHOLD_SAMPLE = 1_000
# Molecules with more than this many times the atoms of the largest training molecule are outside: a binary fingerprint
# does not count repeated substructures, so a polymer has the fingerprint of a small oligomer.
_MAX_SIZE_RATIO = 1.5


@dataclass(frozen=True, eq=False)
class ApplicabilityDomain:
    """Fingerprints of training molecules; raises :class:`InputError` if an array has another shape or dtype, or a
    SMILES has a control character, which terminals obey."""

    bits: np.ndarray = field(metadata=form("N 16", "uint64"))  # fingerprints of 1,024 bits
    rows: np.ndarray = field(metadata=form("N", "int64"))  # row of each molecule in its dataset
    threshold: float
    """Least Tanimoto similarity to the nearest training molecule inside the domain: 95 percent of the training
    molecules have a neighbour with a different fingerprint that is at least as similar."""
    max_training_atoms: int = 0  # atoms of the largest training molecule; 0 if unknown
    smiles: Sequence[str] = ()  # N SMILES if the dataset is not available to a user of the model; else empty

    def __post_init__(self) -> None:
        check_arrays(self)
        fits = len(self.smiles) in (0, len(self.rows)) and all(str.isprintable(text) for text in self.smiles)
        if not (fits and isinstance(self.threshold, float) and isinstance(self.max_training_atoms, int)):
            raise InputError("the applicability domain of the model is not made of numbers and SMILES")

    @classmethod
    def from_fingerprints(
        cls,
        fingerprints: np.ndarray,  # bool [N, 1024], N at most MAX_TRAINING_MOLECULES
        rows: np.ndarray,  # int64 [N], row of each molecule in its dataset
        seed: int,  # of the sample of molecules that determines the threshold
        max_training_atoms: int = 0,  # atoms of the largest, including molecules without a fingerprint here
    ) -> ApplicabilityDomain:
        """Determine the applicability domain of training molecules."""
        bits = _packed(fingerprints)
        # Without duplicates: repeated measurements and stereoisomers would be their own nearest neighbours.
        distinct = bits[np.sort(np.unique(bits, axis=0, return_index=True)[1])]
        queries = np.random.default_rng(seed).permutation(len(distinct))[:_THRESHOLD_SAMPLE]
        neighbour_similarity = _nearest(distinct[queries], distinct, queries)[0]
        threshold = float(np.quantile(neighbour_similarity, _OUTSIDE_FRACTION)) if len(distinct) > 1 else 0.0
        return cls(bits, np.asarray(rows, np.int64), threshold, max_training_atoms)

    @property
    def molecules(self) -> str:
        """Names the molecules that others are compared with."""
        sampled = "random " * (len(self.rows) == MAX_TRAINING_MOLECULES)
        return f"{len(self.rows):,} {sampled}training molecules"

    def contains(self, similarity: np.ndarray, num_atoms: np.ndarray) -> np.ndarray:
        """Whether each molecule is inside: its similarity (:meth:`nearest`; nan if invalid) reaches the threshold, and
        it has at most 1.5 times the atoms of the largest training molecule."""
        near = np.nan_to_num(similarity, nan=-1.0) >= self.threshold - 1e-6
        return near & (num_atoms <= _MAX_SIZE_RATIO * self.max_training_atoms) if self.max_training_atoms else near

    def nearest(self, fingerprints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest training molecule of each of ``bool [R, 1024]``: Tanimoto similarity ``float32 [R]``, and
        index in the domain ``int64 [R]``."""
        return _nearest(_packed(fingerprints), self.bits, np.full(len(fingerprints), -1))


def _packed(fingerprints: np.ndarray) -> np.ndarray:
    """Pack ``bool [R, 1024]`` into ``uint64 [R, 16]``."""
    if fingerprints.ndim != 2 or fingerprints.shape[1] != DOMAIN_BITS:
        raise ValueError(f"expected fingerprints of shape [rows, {DOMAIN_BITS}], not {list(fingerprints.shape)}")
    return np.packbits(fingerprints, axis=1).view(np.uint64)


def _nearest(queries: np.ndarray, references: np.ndarray, exclude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Similarity and index of the nearest reference, skipping the index in ``exclude`` (``int64 [R]``; -1: none)."""
    similarity, index = np.zeros(len(queries), np.float32), np.full(len(queries), -1, np.int64)
    query_counts, counts = (np.bitwise_count(bits).sum(axis=1, dtype=np.int64) for bits in (queries, references))

    def search(begin: int, end: int) -> None:
        chunk = slice(begin, end)
        arguments = queries[chunk], query_counts[chunk], references, counts, exclude[chunk]
        _search(*arguments, similarity[chunk], index[chunk])

    parallel_for(search, len(queries), queries.size * len(references))
    return similarity, index


@njit(cache=True, nogil=True)
def _search(queries, query_counts, references, counts, exclude, similarity, index):
    for i in range(len(queries)):
        best = np.float64(-1.0)
        for j in range(len(references)):
            if j == exclude[i]:
                continue
            common = np.int64(0)
            for w in range(references.shape[1]):
                common += _popcount(queries[i, w] & references[j, w])
            union = query_counts[i] + counts[j] - common
            tanimoto = common / union if union > 0 else 1.0
            if tanimoto > best:
                best, index[i] = tanimoto, j
        similarity[i] = max(best, 0.0)


@njit(cache=True)
def _popcount(x):
    """Count the bits of a word that are set (Warren, Hacker's Delight, 5-1)."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
