"""GPU inference: batch size and the precision of matrix products."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphslice.config import ModelConfig

# Largest batch, which keeps a GPU busy while the next one is launched, and smallest batch, in molecules.
_MAX_BATCH, _MIN_BATCH = 1024, 16
# Rows of a molecule with 32 atoms and its graph token, the unit in which `eval_batches` counts.
_ROWS = 33
# Upper estimate of the four-byte numbers alive at once: for every pair of rows and head (bias, weights, scores and
# intermediate results), for every pair (path types, eight bytes each), and for every row and channel.
_FLOATS_PER_HEAD, _FLOATS_PER_PAIR, _FLOATS_PER_CHANNEL = 4, 4, 8
# Fraction of the free memory that a batch may use; the rest is left to other processes.
_MEMORY_FRACTION = 0.25

#: Mixers for which TF32 does not change predictions noticeably. Trained on the demo set, the largest change of 1,500
#: predictions was 0.0006 to 0.0010 standard deviations of the target. For `csp`, whose sort order depends on the last
#: digit, it was 0.05.
TF32_MIXERS = {
    *("softmax", "galerkin", "fourier", "map-only", "slice-max", "slice-quantile"),
    *("slice-ascend", "slice-interleave", "slice-released"),
}

# Held while the precision of matrix products is set.
_PRECISION = threading.RLock()


def gpu_batch_size(free_bytes: int, model: ModelConfig) -> int:
    """Return the batch size for :func:`~graphslice.data.batch_samplers.eval_batches`, in molecules of 32 atoms.

    Args:
        free_bytes: free GPU memory, in bytes.
        model: configuration of the model.
    """
    pairs = _ROWS**2 * (_FLOATS_PER_HEAD * model.heads + _FLOATS_PER_PAIR)
    rows = _ROWS * (_FLOATS_PER_CHANNEL * model.dim + 2 * model.ffn_dim)
    return max(_MIN_BATCH, min(_MAX_BATCH, int(_MEMORY_FRACTION * free_bytes) // (4 * (pairs + rows))))


def free_memory(device: torch.device) -> int:
    """Return the GPU memory that this process can still use, in bytes, including the cache of torch."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


@contextmanager
def tf32_matmul(device: torch.device, mixer: str) -> Iterator[None]:
    """Context manager: compute float32 matrix products on a GPU in TF32 (11-bit mantissa), several times faster.

    The setting is global to the process: it is restored on exit, and threads that compute on GPUs wait for one another.

    Args:
        device: device of the computation; no effect unless it is a CUDA GPU.
        mixer: mixer of the model; no effect unless it is one of :data:`TF32_MIXERS`.
    """
    if device.type != "cuda":
        yield
        return
    matmul = torch.backends.cuda.matmul
    # torch raises if the older setting is read after the newer one was set.
    name, tf32 = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    with _PRECISION:
        previous = getattr(matmul, name)
        setattr(matmul, name, tf32 if mixer in TF32_MIXERS else previous)
        try:
            yield
        finally:
            setattr(matmul, name, previous)
