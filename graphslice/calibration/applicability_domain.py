"""How near molecules are to those that a model learned."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from graphslice.hardware import cores

#: Bits of the fingerprints that are compared.
DOMAIN_BITS = 1_024
#: The most training molecules that a model keeps; of more, as many at random.
MAX_TRAINING_MOLECULES = 10_000
#: So many of a thousand training molecules have no other training molecule as near as the border of the domain.
_OUTSIDE_FRACTION = 0.05
_THRESHOLD_SAMPLE = 1_000
_WORD = 64
# No source has more rows.
_MOST_ROWS = 10**12
# Molecules with more than so many times the atoms of the largest training molecule are outside: a fingerprint does not
# tell how often a part is repeated, so that a polymer is like its smallest oligomers.
_MAX_SIZE_RATIO = 1.5
# Molecules that a thread looks for at a time.
_CHUNK_ROWS = 256


@dataclass(frozen=True, eq=False)
class ApplicabilityDomain:
    """Fingerprints of training molecules.

    Attributes:
        bits: ``uint64 [N, 16]``, fingerprints of 1,024 bits.
        rows: ``int64 [N]``, the places of the molecules in their source.
        border: of the Tanimoto similarity to the nearest of them; 95 percent of the training molecules have another
            one, with another fingerprint, as near.
        most_atoms: of a training molecule; 0 where that is not known.
        smiles: N texts where the molecules have no source that its reader could look into; else none.
    """

    bits: np.ndarray
    rows: np.ndarray
    threshold: float
    max_training_atoms: int = 0
    smiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fits = self.bits.dtype == np.uint64 and self.bits.ndim == 2 and self.bits.shape[1] == DOMAIN_BITS // _WORD
        fits = fits and len(self.smiles) in (0, len(self.bits))
        if not fits or self.rows.shape != self.bits.shape[:1] or not 0 <= self.threshold <= 1:
            raise ValueError("a domain")
        if ((self.rows < 0) | (self.rows > _MOST_ROWS)).any() or not 0 <= self.max_training_atoms <= _MOST_ROWS:
            raise ValueError("a domain")

    @classmethod
    def from_fingerprints(
        cls, fingerprints: np.ndarray, rows: np.ndarray, seed: int, max_training_atoms: int = 0
    ) -> ApplicabilityDomain:
        """The domain of some training molecules.

        Args:
            fingerprints: ``bool [N, 1024]``, of at most :data:`MAX_TRAINING_MOLECULES`.
            rows: ``int64 [N]``.
            seed: of the molecules that the border is found with.
            most_atoms: of a training molecule, also of those without a fingerprint here.
        """
        bits = _packed(fingerprints)
        # A molecule with several rows, or stereoisomers, is near to itself and not to another one.
        different = bits[np.sort(np.unique(bits, axis=0, return_index=True)[1])]
        asked = np.random.default_rng(seed).permutation(len(different))[:_THRESHOLD_SAMPLE]
        others = _nearest(different[asked], different, asked)[0]
        threshold = float(np.quantile(others, _OUTSIDE_FRACTION)) if len(different) > 1 else 0.0
        return cls(bits, np.asarray(rows, np.int64), threshold, max_training_atoms)

    def contains(self, similarity: np.ndarray, num_atoms: np.ndarray) -> np.ndarray:
        """Which molecules are as near to a training molecule as those are to each other, and not far larger than all.

        Args:
            similarity: ``float32 [R]``, of :meth:`nearest`, nan where there is no molecule.
            num_atoms: ``int [R]``.

        Returns:
            ``bool [R]``.
        """
        near = np.nan_to_num(similarity, nan=-1.0) >= self.threshold - 1e-6
        return near & (num_atoms <= _MAX_SIZE_RATIO * self.max_training_atoms) if self.max_training_atoms else near

    def nearest(self, fingerprints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The training molecule that is nearest to each molecule.

        Args:
            fingerprints: ``bool [R, 1024]``.

        Returns:
            Its Tanimoto similarity, ``float32 [R]``, and its place among those of the domain, ``int64 [R]``.
        """
        return _nearest(_packed(fingerprints), self.bits, np.full(len(fingerprints), -1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values and arrays, such as a checkpoint holds."""
        named = {"smiles": "\n".join(self.smiles)} if self.smiles else {}
        values = {"bits": self.bits.view(np.int64), "rows": self.rows, "border": self.threshold}
        return values | {"most_atoms": self.max_training_atoms} | named

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ApplicabilityDomain:
        """The inverse of :meth:`to_dict`; raises KeyError, TypeError or ValueError for what it does not write."""
        bits = np.ascontiguousarray(values["bits"]).view(np.uint64)
        smiles = tuple(values.get("smiles", "").splitlines())
        max_training_atoms = int(values.get("most_atoms", 0))  # checkpoints of 0.1 have none
        rows = np.asarray(values["rows"]).astype(np.int64, casting="same_kind")
        return cls(bits, rows, float(values["border"]), max_training_atoms, smiles)


def _packed(fingerprints: np.ndarray) -> np.ndarray:
    """``uint64 [R, 16]`` of ``bool [R, 1024]``."""
    if fingerprints.ndim != 2 or fingerprints.shape[1] != DOMAIN_BITS:
        raise ValueError(f"fingerprints of shape {fingerprints.shape}")
    return np.packbits(fingerprints, axis=1).view(np.uint64)


def _nearest(asked: np.ndarray, known: np.ndarray, itself: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Similarity and place of the nearest of ``known``, but ``itself`` (``int64 [R]``, -1: none is left out)."""
    similarity, place = np.zeros(len(asked), np.float32), np.full(len(asked), -1, np.int64)
    itself, counts = np.asarray(itself, np.int64), np.zeros(len(known), np.int64)
    _count(known, counts)

    def search(begin: int) -> None:
        some = slice(begin, begin + _CHUNK_ROWS)
        _search(asked[some], known, counts, itself[some], similarity[some], place[some])

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(search, range(0, len(asked), _CHUNK_ROWS)))
    return similarity, place


@njit(cache=True, nogil=True)
def _count(known, counts):
    for j in range(len(known)):
        counts[j] = _ones(known[j])


@njit(cache=True, nogil=True)
def _search(asked, known, counts, itself, similarity, place):
    for i in range(len(asked)):
        own, best = _ones(asked[i]), np.float64(-1.0)
        for j in range(len(known)):
            if j == itself[i]:
                continue
            both = np.int64(0)
            for w in range(known.shape[1]):
                both += _popcount(asked[i, w] & known[j, w])
            either = own + counts[j] - both
            found = both / either if either > 0 else 1.0
            if found > best:
                best, place[i] = found, j
        similarity[i] = max(best, 0.0)


@njit(cache=True)
def _ones(words):
    total = np.int64(0)
    for w in range(len(words)):
        total += _popcount(words[w])
    return total


@njit(cache=True)
def _popcount(x):
    """The bits of a word that are set (Warren, Hacker's Delight, 5-1)."""
    x = x - ((x >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))
