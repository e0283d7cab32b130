"""Batched inference over a store by torch, on all CPU cores or on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.config import RunConfig
from graphslice.data.batch_loader import BatchLoader, collate_rows
from graphslice.data.batch_samplers import eval_batches
from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.store import GraphStore
from graphslice.inference.gpu import free_memory, gpu_batch_size
from graphslice.threads import map_one_core_each

# Batch size on the CPU, in molecules.
_BATCH = 128


def for_each_batch(
    config: RunConfig,
    device: torch.device,
    store: GraphStore,
    rows: np.ndarray,
    compute: Callable[[GraphBatch], np.ndarray],
    results: np.ndarray,
    counts: np.ndarray | None = None,
) -> None:
    """Apply a function to valid molecules of a store, in batches of molecules of similar size.

    Args:
        config: configuration of the model.
        device: device of the computation.
        store: featurized as ``config.graph`` says.
        rows: ``int64 [R]``, all of valid molecules.
        compute: maps a batch of B molecules to ``[..., B, C]``; called from several threads on the CPU.
        results: ``[..., R, C]``, filled in place.
        counts: ``int64 [R]``, number of rows of ``results`` per molecule. Default: one each.
    """
    ptr = pointers(np.ones(len(rows), np.int64) if counts is None else counts)
    on_gpu = device.type == "cuda"
    batch_size = gpu_batch_size(free_memory(device), config.model) if on_gpu else _BATCH
    batches = eval_batches(store.sizes[rows], batch_size)
    settings = config.collate_settings
    if device.type != "cpu":
        loader = BatchLoader(store, rows, batches, settings, threads=2, pin_memory=on_gpu)
        for indices, batch in zip(batches, loader, strict=True):
            results[..., ragged_indices(ptr, indices), :] = compute(batch)
        return

    def fill(indices: list[int]) -> None:
        results[..., ragged_indices(ptr, indices), :] = compute(collate_rows(store, rows[indices], **settings))

    map_one_core_each(fill, batches)
