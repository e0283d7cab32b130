"""Networks of a model, run by torch on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from graphslice.batch import GraphBatch
from graphslice.checkpoint import Checkpoint
from graphslice.config import MOLECULE
from graphslice.data.store import GraphStore
from graphslice.errors import InputError, first_line
from graphslice.inference.batches import for_each_batch
from graphslice.inference.gpu import tf32_matmul
from graphslice.inference.program_cache import save_program


def torch_device(name: str) -> torch.device:
    """Return a torch device by its name; raises InputError if this machine does not have it, or it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        return device
    except (RuntimeError, AssertionError) as error:
        if name.startswith("cuda") and torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count():
            reason = f"the device {name!r} cannot be used ({first_line(error)}): give --device cpu"
        else:
            reason = f"this machine has no device {name!r}"
        raise InputError(reason) from None


class TorchNetworks:
    """Networks of a model with M members, as torch modules.

    Args:
        checkpoints: one per member.
        device: name of a torch device.

    Attributes:
        modules: the networks, in evaluation mode.
        device: the device.

    Raises:
        InputError: if this machine has no such device, or the weights of a checkpoint do not fit its configuration.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], device: str) -> None:
        self.device = torch_device(device)
        self._config = checkpoints[0].config
        self.modules = [checkpoint.model().to(self.device) for checkpoint in checkpoints]
        if self.device.type == "cpu" and self._config.model.level == MOLECULE:
            save_program(self._config.model, self.modules[0])

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
        """Number of parameters of one member."""
        return self.modules[0].num_parameters

    def predict(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute the outputs of the networks in the unit of the targets.

        Args:
            store: featurized as the configuration of the model says.
            rows: ``int64 [R]``, all of valid molecules.

        Returns:
            ``float32 [M, R, W + D]``: W predictions, then D standard deviations of their errors. At atom or bond level
            ``[M, S, W + D]`` for all S atoms or bonds, in the order of the store.
        """
        counts = store.atom_bond_counts(self._config.model.level, rows)
        outputs = np.full((len(self.modules), counts.sum(), self._config.model.tasks), np.nan, dtype=np.float32)
        for_each_batch(self._config, self.device, store, rows, self._forward, outputs, counts)
        return outputs

    def _forward(self, batch: GraphBatch) -> np.ndarray:
        batch = batch.to(self.device, non_blocking=True)
        with torch.inference_mode(), tf32_matmul(self.device, self._config.model.mixer):
            outputs = [module(batch).float().cpu().numpy() for module in self.modules]
        return np.stack(outputs)

    def embed(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute embeddings of molecules, ``float32 [R, C]``."""
        embeddings = np.empty((len(rows), self.width), dtype=np.float32)
        for_each_batch(self._config, self.device, store, rows, self._embed_batch, embeddings)
        return embeddings

    def _embed_batch(self, batch: GraphBatch) -> np.ndarray:
        batch = batch.to(self.device, non_blocking=True)
        with torch.inference_mode(), tf32_matmul(self.device, self._config.model.mixer):
            members = [module.compute_embeddings(batch).float() for module in self.modules]
            return torch.cat(members, dim=1).cpu().numpy()

    def as_torch(self) -> TorchNetworks:
        """Return the networks as torch modules: these."""
        return self
