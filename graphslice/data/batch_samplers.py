"""Batch samplers for training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from graphslice.errors import InputError


def batches_per_epoch(molecules: int, batch_size: int, world: int = 1) -> int:
    """Count the batches of an epoch on ``world`` devices; an incomplete last one needs a molecule for each device."""
    full_batches, rest = divmod(molecules, batch_size)
    return full_batches + (rest >= world)


class TrainBatches:
    """Shuffled training batches of one epoch, starting at any step; raises InputError if there is none.

    The order depends on the seed and the epoch only, so a resumed run continues with exactly the batches it had not
    seen. The molecules are shuffled, sorted by size within every ``WINDOW`` batches and cut into batches, whose order
    is shuffled again: batches of similar sizes need little padding. All devices get the same number of batches.
    """

    WINDOW = 32

    def __init__(
        self,
        sizes: np.ndarray,  # int64 [R], numbers of atoms
        batch_size: int,  # molecules per step, over all devices
        seed: int,
        rank: int = 0,  # index of this device
        world: int = 1,  # number of devices
        step: Callable[[], int] = lambda: 0,  # optimiser steps so far: a resumed run continues there
    ) -> None:
        self.sizes, self.batch_size, self.seed = sizes, batch_size, seed
        self.rank, self.world, self.step = rank, world, step
        if batch_size < world or len(self) == 0:
            raise InputError(
                f"{world} devices need at least {world} molecules per batch, but there are {len(sizes)} training "
                f"molecules and trainer.batch_size is {batch_size}: use fewer devices or a larger batch size"
            )

    def __len__(self) -> int:
        return batches_per_epoch(len(self.sizes), self.batch_size, self.world)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self.step(), len(self))
        for rows in self._epoch(epoch)[first:]:
            yield rows[self.rank :: self.world].tolist()

    def widths(self, multiple: int) -> set[int]:
        """Return the widths (atoms plus graph token) of full batches of the first epoch, padded to a ``multiple``."""
        full_batches = [rows[self.rank :: self.world] for rows in self._epoch(0) if len(rows) == self.batch_size]
        return {-(-(int(self.sizes[rows].max()) + 1) // multiple) * multiple for rows in full_batches}

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.sizes))[: len(self) * self.batch_size]
        window = self.WINDOW * self.batch_size
        batches: list[np.ndarray] = []
        for start in range(0, len(order), window):
            rows = order[start : start + window]
            rows = rows[np.argsort(self.sizes[rows], kind="stable")]
            sorted_batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
            batches += [sorted_batches[i] for i in random.permutation(len(sorted_batches))]
        return batches


def eval_batches(sizes: np.ndarray, batch_size: int, rank: int = 0, world: int = 1) -> list[list[int]]:
    """Return batches of molecules with ``sizes`` atoms, sorted by size; surplus devices repeat the smallest molecule. A
    padded batch has at most as many pairs of atoms as ``batch_size`` molecules of 32 atoms."""
    order = np.argsort(sizes, kind="stable")
    order = order[rank::world] if rank < len(order) else order[:1]  # every device needs a molecule
    batches: list[list[int]] = []
    budget = batch_size * 33**2
    for row in order.tolist():
        fits = batches and len(batches[-1]) < batch_size and (len(batches[-1]) + 1) * (sizes[row] + 1) ** 2 <= budget
        if not fits:
            batches.append([])
        batches[-1].append(row)
    return batches
