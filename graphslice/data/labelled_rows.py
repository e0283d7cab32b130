"""Rows of labelled molecules on their way from a table to a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class LabelledRows:
    """Some consecutive rows of labelled molecules.

    Attributes:
        smiles: R texts.
        targets: ``float64 [R, T]``, nan where unknown.
        split: ``int8 [R]``, each row's number in :data:`~graphslice.data.splits.SPLITS`, ``NO_SPLIT`` for none.
        rejected: reason by row, for rows whose labels are of no use.
        columns: ``float32 [R, K]``, descriptors that the table itself has, nan where unknown; None for none.
    """

    smiles: list[str]
    targets: np.ndarray
    split: np.ndarray
    rejected: dict[int, str]
    columns: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.smiles)

    def __getitem__(self, rows: slice) -> LabelledRows:
        begin, end, _ = rows.indices(len(self))
        rejected = {row - begin: reason for row, reason in self.rejected.items() if begin <= row < end}
        columns = None if self.columns is None else self.columns[begin:end]
        return LabelledRows(self.smiles[begin:end], self.targets[begin:end], self.split[begin:end], rejected, columns)

    @classmethod
    def join(cls, chunks: Sequence[LabelledRows]) -> LabelledRows:
        """The rows of some chunks, at least one, one chunk after the other."""
        rejected: dict[int, str] = {}
        begin = 0
        for chunk in chunks:
            rejected.update({begin + row: reason for row, reason in chunk.rejected.items()})
            begin += len(chunk)
        columns = [chunk.columns for chunk in chunks if chunk.columns is not None]
        return cls(
            [text for chunk in chunks for text in chunk.smiles],
            np.concatenate([chunk.targets for chunk in chunks]),
            np.concatenate([chunk.split for chunk in chunks]),
            rejected,
            np.concatenate(columns) if columns else None,
        )

    def digest(self) -> str:
        """A hash of all of it."""
        found = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes() + self.split.tobytes())
        found.update("\n".join(self.smiles).encode(errors="surrogatepass"))
        found.update(repr(sorted(self.rejected.items())).encode(errors="surrogatepass"))
        if self.columns is not None:
            found.update(np.ascontiguousarray(self.columns).tobytes())
        return found.hexdigest()[:32]


def rechunk_rows(chunks: Iterable[LabelledRows], size: int) -> Iterator[LabelledRows]:
    """The same rows in chunks of exactly ``size``, but for the last."""
    waiting: list[LabelledRows] = []
    for chunk in chunks:
        waiting.append(chunk)
        while sum(map(len, waiting)) >= size:
            joined = LabelledRows.join(waiting)
            yield joined[:size]
            waiting = [joined[size:]] if len(joined) > size else []
    if waiting:
        yield LabelledRows.join(waiting)
