"""Networks of a model: run by torch, or on a CPU as a compiled program without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from graphslice.checkpoint import Checkpoint
from graphslice.data.store import GraphStore
from graphslice.inference.compiled_networks import compile_networks

if TYPE_CHECKING:
    from graphslice.inference.torch_networks import TorchNetworks


class Networks(Protocol):
    """The networks of a model with M members."""

    @property
    def target_stds(self) -> list[np.ndarray]:
        """For each member ``float32 [W + D]``, the standard deviations of its training labels."""

    @property
    def weights(self) -> list[dict[str, np.ndarray]]:
        """State dict of each member."""

    @property
    def width(self) -> int:
        """C, number of columns of the embeddings of all members."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of one member."""

    def predict(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute the outputs of the networks in the unit of the targets.

        Args:
            store: featurized as the configuration of the model says.
            rows: ``int64 [R]``, all of valid molecules.

        Returns:
            ``float32 [M, R, W + D]``: W predictions, then D standard deviations of their errors. At atom or bond level
            ``[M, S, W + D]`` for all S atoms or bonds, in the order of the store.
        """

    def embed(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute embeddings of molecules, ``float32 [R, C]``; arguments as for :meth:`predict`."""

    def as_torch(self) -> TorchNetworks:
        """Return the networks as torch modules."""


def load_networks(checkpoints: Sequence[Checkpoint], device: str) -> Networks:
    """Load the networks of a model onto a device.

    On a CPU they run as a compiled program if there is one for their configuration; else torch runs them.

    Args:
        checkpoints: one per member.
        device: name of a torch device.

    Raises:
        InputError: if the weights of a checkpoint do not fit its configuration.
    """

    def load() -> TorchNetworks:
        from graphslice.inference.torch_networks import TorchNetworks  # takes a second to import

        return TorchNetworks(checkpoints, device)

    compiled = compile_networks(checkpoints, load) if device == "cpu" else None
    return compiled or load()
