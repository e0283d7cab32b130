"""Activations of a model for one molecule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolGraph
from graphslice.data.batch_loader import collate
from graphslice.errors import InputError
from graphslice.inference.predictor import Predictor


@dataclass
class Activations:
    """Activations of a model with L blocks for one molecule of N atoms; row 0 is the graph token.

    Attributes:
        rows: ``float32 [L + 1, N + 1, C]``, input of each of the L blocks, and output of the last.
        mixed: ``float32 [L, N + 1, C]``, input of the output projection of each mixer.
        attn_weights: ``float32 [H, N + 1, N + 1]``, ``P = Softmax(S + E)``, also for mixers that use S + E alone.
        distances: ``int32 [N, N]``, path lengths in bonds; 510 between fragments.
        prediction: ``float32 [T]``, in the unit of the targets.
    """

    rows: np.ndarray
    mixed: np.ndarray
    attn_weights: np.ndarray
    distances: np.ndarray
    prediction: np.ndarray


def collate_one(predictor: Predictor, graph: MolGraph, descriptors: Mapping[str, np.ndarray] | None) -> GraphBatch:
    """Return a batch of one molecule for a model; raise :class:`InputError` if it needs descriptors, without any."""
    if predictor.config.data.descriptors and descriptors is None:
        raise InputError(
            f"the model expects molecular descriptors ({', '.join(predictor.config.data.descriptors)}) in addition to "
            "the graph: pass descriptors=predictor.descriptors(smiles)"
        )
    return collate([graph], descriptors, **predictor.config.collate_settings).to(predictor.device)


def activations(
    predictor: Predictor, graph: MolGraph, descriptors: Mapping[str, np.ndarray] | None = None
) -> Activations:
    """Compute the activations of a model for one molecule.

    Args:
        predictor: model.
        graph: molecule.
        descriptors: descriptors of the molecule from :meth:`Predictor.descriptors`, if the model uses any.

    Returns:
        The activations, as NumPy arrays.

    Raises:
        InputError: if the model expects descriptors and none are given.
    """
    predictor.require_single()
    model, batch = predictor.networks.as_torch().modules[0], collate_one(predictor, graph, descriptors)
    rows: list[Tensor] = []
    mixed: list[Tensor] = []

    def record_input(module: nn.Module, inputs: tuple) -> None:
        rows.append(inputs[0])

    def record_mixed(output: nn.Module, inputs: tuple) -> None:
        mixed.append(inputs[0])

    hooks = [block.register_forward_pre_hook(record_input) for block in model.blocks]
    hooks += [block.get_submodule("mixer.output").register_forward_pre_hook(record_mixed) for block in model.blocks]
    hooks.append(model.norm.register_forward_pre_hook(record_input))
    try:
        with torch.inference_mode():
            prediction = model(batch)[0]
            attn_weights = model.pairs(batch, ["attn_weights"]).attn_weights[0]
    finally:
        for hook in hooks:
            hook.remove()
    distances = batch.path_distances[batch.path_types[0].long()]
    tensors = (torch.cat(rows), torch.cat(mixed), attn_weights, distances, prediction)
    return Activations(*(tensor.cpu().numpy() for tensor in tensors))
