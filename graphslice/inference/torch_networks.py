"""Networks of a model, run by torch on all CPU cores or on a GPU: batches, their size, and the precision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graphslice.batch import GraphBatch
from graphslice.config import MOLECULE, ModelConfig
from graphslice.data.batches import BatchLoader, Progress, collate_rows, eval_batches, no_progress
from graphslice.data.labels import pointers, ragged_indices
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, first_line
from graphslice.inference.program_cache import save_program
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.threads import map_one_core_each

if TYPE_CHECKING:
    from graphslice.nn import GraphTransformer


def torch_device(name: str) -> torch.device:
    """Return a torch device by its name; raises InputError if it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        return device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"cannot use the device {name!r}: {first_line(error)}") from None


class TorchNetworks:
    """Networks of M members as torch modules in evaluation mode; InputError for a missing device or unfit weights."""

    def __init__(self, checkpoints: Sequence[Checkpoint], device: str) -> None:
        self.device = torch_device(device)
        # Batches must fit the largest member, if they are those of several runs.
        self._config = max((checkpoint.config for checkpoint in checkpoints), key=lambda config: config.model.dim)
        self.modules = [checkpoint.model().to(self.device) for checkpoint in checkpoints]
        if self.device.type == "cpu" and self._config.model.level == MOLECULE:
            save_program(self.modules[0].config, self.modules[0])

    @property
    def target_stds(self) -> list[np.ndarray]:
        """For each member ``float32 [W + D]``, the standard deviations of its training labels."""
        return [module.target_std.cpu().numpy() for module in self.modules]

    @property
    def weights(self) -> list[dict[str, np.ndarray]]:
        """State dict of each member."""
        return [{name: value.cpu().numpy() for name, value in m.state_dict().items()} for m in self.modules]

    @property
    def width(self) -> int:
        """C, number of columns of the embeddings of all members."""
        return sum(module.width for module in self.modules)

    @property
    def num_parameters(self) -> int:
        return self.modules[0].num_parameters

    def predict(self, store: GraphStore, rows: np.ndarray, progress: Progress = no_progress) -> list[np.ndarray]:
        """Compute by member ``float32 [R, W + D]``, predictions in the unit of the targets and D standard deviations of
        their errors, of valid molecules ``rows``; ``[S, W + D]`` for all S atoms or bonds in the order of the store."""
        counts = store.atom_bond_counts(self._config.model.level, rows)
        ends = pointers([module.config.tasks for module in self.modules])[1:]
        outputs = self._compute(lambda module, batch: module(batch), store, rows, counts, ends[-1], progress)
        return np.split(outputs, ends[:-1], axis=1)

    def embed(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute embeddings of molecules, ``float32 [R, C]``."""
        counts = np.ones(len(rows), np.int64)
        return self._compute(lambda module, batch: module.compute_embeddings(batch), store, rows, counts, self.width)

    def _compute(
        self,
        compute: Callable[[GraphTransformer, GraphBatch], Tensor],
        store: GraphStore,
        rows: np.ndarray,  # int64 [R], all of valid molecules
        counts: np.ndarray,  # int64 [R], rows of results per molecule, S in all
        width: int,  # of the results of all members, side by side
        progress: Progress = no_progress,
    ) -> np.ndarray:
        """Compute ``float32 [S, width]`` in batches of molecules of similar size, on a CPU in several threads."""
        ptr, results = pointers(counts), np.empty((counts.sum(), width), np.float32)
        on_gpu, settings = self.device.type == "cuda", self._config.collate_settings
        batch_size = gpu_batch_size(free_memory(self.device), self._config.model) if on_gpu else _BATCH
        batches = eval_batches(store.sizes[rows], batch_size)

        def fill(indices: list[int], batch: GraphBatch) -> None:
            parts = []
            for module in self.modules:
                with torch.inference_mode(), tf32_matmul(self.device, module.config.mixer):
                    parts.append(compute(module, batch).float().cpu())
            results[ragged_indices(ptr, indices)] = torch.cat(parts, dim=1).numpy()

        if self.device.type == "cpu":
            map_one_core_each(
                lambda indices: fill(indices, collate_rows(store, rows[indices], **settings)),
                batches,
                lambda done: progress(len(done)),
            )
            return results
        loader = BatchLoader(store, rows, batches, settings, threads=2, pin_memory=on_gpu)
        for indices, batch in zip(batches, loader, strict=True):
            fill(indices, batch.to(self.device, non_blocking=True))
            progress(len(indices))
        return results

    def as_torch(self) -> TorchNetworks:
        return self


# Batch size on the CPU, in molecules.
_BATCH = 128


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
    """Return the batch size for :func:`~graphslice.data.batches.eval_batches`, in molecules of 32 atoms."""
    pairs = _ROWS**2 * (_FLOATS_PER_HEAD * model.heads + _FLOATS_PER_PAIR)
    rows = _ROWS * (_FLOATS_PER_CHANNEL * model.dim + 2 * model.ffn_dim)
    return max(_MIN_BATCH, min(_MAX_BATCH, int(_MEMORY_FRACTION * free_bytes) // (4 * (pairs + rows))))


def free_memory(device: torch.device) -> int:
    """Return the GPU memory that this process can still use, in bytes, including the cache of torch."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


@contextmanager
def tf32_matmul(device: torch.device, mixer: str) -> Iterator[None]:
    """Compute float32 matrix products of :data:`TF32_MIXERS` on a GPU in TF32 (11-bit mantissa), several times faster.
    The setting is global: it is restored on exit, and threads that compute on GPUs wait for one another."""
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
