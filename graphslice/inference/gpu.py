"""How predictions use a GPU: how many molecules at a time, and with which products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphslice.config import ModelConfig

# Molecules that are enough to keep a GPU busy while the next batch is launched, and fewer than which none gets.
_MAX_BATCH, _MIN_BATCH = 1024, 16
# Rows of a molecule of 32 atoms and its token, by which `EvalBatches` counts.
_ROWS = 33
# Numbers of four bytes alive at once: for every pair of rows and head (bias, weights, scores and what is made of them),
# for every pair (the types of the paths, as eight bytes), and for every row and channel. Rather too many.
_FLOATS_PER_HEAD, _FLOATS_PER_PAIR, _FLOATS_PER_CHANNEL = 4, 4, 8
# The share of the free memory that a batch may take: other processes may want some.
_MEMORY_FRACTION = 0.25

#: The mixers whose predictions TF32 was measured to leave where they are: trained on the demo set, the worst of 1,500
#: moved by 0.0006 to 0.0010 of the target's deviation. Of `csp`, whose ranks fall with the last digit, by 0.05.
TF32_MIXERS = {
    *("softmax", "galerkin", "fourier", "map-only", "slice-max", "slice-quantile"),
    *("slice-ascend", "slice-interleave", "slice-released"),
}


def gpu_batch_size(free_bytes: int, model: ModelConfig) -> int:
    """How many molecules of 32 atoms to predict at a time, for :class:`~graphslice.data.batch_loader.EvalBatches`.

    Args:
        free_bytes: of the GPU's memory.
        model: what predicts.
    """
    pairs = _ROWS**2 * (_FLOATS_PER_HEAD * model.heads + _FLOATS_PER_PAIR)
    rows = _ROWS * (_FLOATS_PER_CHANNEL * model.dim + 2 * model.ffn_dim)
    return max(_MIN_BATCH, min(_MAX_BATCH, int(_MEMORY_FRACTION * free_bytes) // (4 * (pairs + rows))))


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that this process can still use, what torch keeps for later included."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


@contextmanager
def tf32_matmul(device: torch.device, mixer: str) -> Iterator[None]:
    """Within it, a GPU rounds the factors of float32 matrix products to TF32, 11 binary digits, for some mixers.

    Products are several times as fast so. The setting is the process's: it is set back after.

    Args:
        device: that computes.
        mixer: of the model; only those of :data:`TF32_MIXERS`.
    """
    if device.type != "cuda" or mixer not in TF32_MIXERS:
        yield
        return
    products = torch.backends.cuda.matmul
    # The older of the two names may not be asked once somebody has used the newer one.
    name, tf32 = ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    before = getattr(products, name)
    setattr(products, name, tf32)
    try:
        yield
    finally:
        setattr(products, name, before)
