"""Network of a configuration with given weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from graphslice.config import ModelConfig
from graphslice.nn import GraphTransformer


class _SkipRandomInit(TorchFunctionMode):
    """Leave weights uninitialised, as they are loaded afterwards: random initialisation would advance the generator of
    random numbers that another thread may train with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):  # of Tensor, or of torch.nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_network(config: ModelConfig, weights: Mapping[str, np.ndarray]) -> GraphTransformer:
    """Build a network in evaluation mode with the weights of a state dict; raises :class:`InputError` as
    :class:`~graphslice.nn.GraphTransformer`, and RuntimeError if the weights do not fit the architecture."""
    with _SkipRandomInit():
        network = GraphTransformer(config)
    network.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    return network.eval()
