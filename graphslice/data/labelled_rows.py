"""Chunks of labelled molecules, the intermediate form between a table and a preprocessed dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class LabelledRows:
    """Consecutive rows of labelled molecules.

    Attributes:
        smiles: R texts.
        targets: ``float64 [R, T]``, nan where unknown.
        split: ``int8 [R]``, index of each row's split in :data:`~graphslice.data.splits.SPLITS`, ``NO_SPLIT`` for none.
        rejected: reason of rejection, by row, for rows with invalid labels.
        columns: ``float32 [R, K]``, descriptor columns of the table, nan where unknown; None if there are none.
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
        """Concatenate chunks, at least one."""
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
        """Return a hash of all fields, 32 hexadecimal digits of SHA-256."""
        digest = hashlib.sha256(np.ascontiguousarray(self.targets).tobytes() + self.split.tobytes())
        digest.update("\n".join(self.smiles).encode(errors="surrogatepass"))
        digest.update(repr(sorted(self.rejected.items())).encode(errors="surrogatepass"))
        if self.columns is not None:
            digest.update(np.ascontiguousarray(self.columns).tobytes())
        return digest.hexdigest()[:32]


def rechunk_rows(chunks: Iterable[LabelledRows], size: int) -> Iterator[LabelledRows]:
    """Regroup rows into chunks of exactly ``size`` rows, except for the last."""
    waiting: list[LabelledRows] = []
    for chunk in chunks:
        waiting.append(chunk)
        while sum(map(len, waiting)) >= size:
            joined = LabelledRows.join(waiting)
            yield joined[:size]
            waiting = [joined[size:]] if len(joined) > size else []
    if waiting:
        yield LabelledRows.join(waiting)
