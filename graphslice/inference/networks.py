"""Networks of a model: run by torch, or on a CPU as a compiled program without torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, Union

from graphslice.checkpoint import Checkpoint
from graphslice.inference.compiled_networks import CompiledNetworks, compile_networks

if TYPE_CHECKING:
    from graphslice.inference.torch_networks import TorchNetworks

#: The networks of a model with M members.
Networks: TypeAlias = Union[CompiledNetworks, "TorchNetworks"]


def load_networks(checkpoints: Sequence[Checkpoint], device: str) -> Networks:
    """Load the networks of a model onto a device.

    On a CPU they run as a compiled program if there is one for their configuration; else torch runs them.

    Args:
        checkpoints: one per member.
        device: name of a torch device.

    Raises:
        InputError: if the weights of a checkpoint do not fit its configuration.
    """

    @cache
    def load() -> TorchNetworks:
        from graphslice.inference.torch_networks import TorchNetworks  # takes a second to import

        return TorchNetworks(checkpoints, device)

    compiled = compile_networks(checkpoints, load) if device == "cpu" else None
    return compiled or load()
