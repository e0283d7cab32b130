"""Rows of labelled molecules on their way from a source to a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from graphslice.data.store import ROWS


@dataclass
class Rows:
    """Some consecutive rows of labelled molecules.

    Attributes:
        smiles: R texts.
        targets: ``float64 [R, T]``, nan where unknown.
        split: ``int8 [R]``, numbers of :data:`~graphslice.data.store.PARTS`.
        rejected: reason by row, for rows whose labels are of no use.
    """

    smiles: list[str]
    targets: np.ndarray
    split: np.ndarray
    rejected: dict[int, str]

    def __len__(self) -> int:
        return len(self.smiles)

    def digest(self) -> str:
        """A hash of all of it."""
        found = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes() + self.split.tobytes())
        found.update("\n".join(self.smiles).encode(errors="surrogatepass"))
        found.update(repr(sorted(self.rejected.items())).encode(errors="surrogatepass"))
        return found.hexdigest()[:32]


def rows_of(pieces: Iterable[Rows], size: int = ROWS) -> Iterator[Rows]:
    """The same rows in pieces of exactly ``size``, but for the last."""
    held: list[Rows] = []
    for piece in pieces:
        held.append(piece)
        while sum(map(len, held)) >= size:
            whole = _joined(held)
            yield _cut(whole, 0, size)
            rest = _cut(whole, size, len(whole))
            held = [rest] if len(rest) else []
    if held:
        yield _joined(held)


def _joined(pieces: list[Rows]) -> Rows:
    rejected, begin = {}, 0
    for piece in pieces:
        rejected.update({begin + row: reason for row, reason in piece.rejected.items()})
        begin += len(piece)
    return Rows(
        [text for piece in pieces for text in piece.smiles],
        np.concatenate([piece.targets for piece in pieces]),
        np.concatenate([piece.split for piece in pieces]),
        rejected,
    )


def _cut(rows: Rows, begin: int, end: int) -> Rows:
    rejected = {row - begin: reason for row, reason in rows.rejected.items() if begin <= row < end}
    return Rows(rows.smiles[begin:end], rows.targets[begin:end], rows.split[begin:end], rejected)
