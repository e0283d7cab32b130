"""Molecules of a store through a model in batches of similar sizes, on every core or on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.config import RunConfig
from graphslice.data.atom_bond_labels import pointers, ragged_indices
from graphslice.data.batch_loader import BatchLoader, EvalBatches
from graphslice.data.collate import collate_rows
from graphslice.data.store import GraphStore
from graphslice.inference.gpu import free_memory, gpu_batch_size
from graphslice.ops.threads import map_one_core_each

# Molecules of a batch, but on a GPU.
_BATCH = 128


def for_each_batch(
    config: RunConfig,
    device: torch.device,
    store: GraphStore,
    rows: np.ndarray,
    compute: Callable[[GraphBatch], np.ndarray],
    found: np.ndarray,
    counts: np.ndarray | None = None,
) -> None:
    """Compute something of some rows of a store that have molecules, in batches of similar sizes.

    Args:
        config: of the model.
        device: that computes.
        store: made as ``config.graph`` says.
        rows: ``int64 [R]``.
        compute: ``[..., B, C]`` of a batch of B molecules; called from several threads.
        found: ``[..., R, C]``, which is filled.
        counts: ``int64 [R]``, how many rows of ``found`` each molecule has; one when not given.
    """
    ptr = pointers(np.ones(len(rows), np.int64) if counts is None else counts)
    on_gpu = device.type == "cuda"
    most = gpu_batch_size(free_memory(device), config.model) if on_gpu else _BATCH
    batches = list(EvalBatches(store.sizes[rows], most))
    settings = config.collate_settings
    if device.type != "cpu":
        loader = BatchLoader(store, rows, batches, settings, threads=2, pin_memory=on_gpu)
        for indices, batch in zip(batches, loader, strict=True):
            found[..., ragged_indices(ptr, indices), :] = compute(batch)
        return

    def fill(indices: list[int]) -> None:
        found[..., ragged_indices(ptr, indices), :] = compute(collate_rows(store, rows[indices], **settings))

    map_one_core_each(fill, batches)
