"""One molecule on its way through a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphslice.chem.molecule import MolGraph
from graphslice.data.collate import collate
from graphslice.errors import InputError
from graphslice.inference.predictor import Predictor


@dataclass
class Activations:
    """What a model computes for one molecule of N atoms; row 0 of all is the graph token.

    Attributes:
        rows: ``float32 [L + 1, N + 1, C]``: what enters each of L blocks, and what leaves the last.
        mixed: ``float32 [L, N + 1, C]``: what each mixer gives its output projection.
        attn_weights: ``float32 [H, N + 1, N + 1]``: ``P = Softmax(S + E)``, also where the mixer reads S + E alone.
        distances: ``int32 [N, N]`` in bonds; 510 between fragments.
        prediction: ``float32 [T]`` in the unit of the targets.
    """

    rows: np.ndarray
    mixed: np.ndarray
    attn_weights: np.ndarray
    distances: np.ndarray
    prediction: np.ndarray


def require_descriptors(
    predictor: Predictor, descriptors: Mapping[str, np.ndarray] | None
) -> Mapping[str, np.ndarray] | None:
    """The descriptors; raises InputError where a model reads some, and none are given."""
    if predictor.config.data.descriptors and descriptors is None:
        raise InputError(
            f"the model reads {', '.join(predictor.config.data.descriptors)} beside the graph: give "
            "descriptors=predictor.descriptors(smiles)"
        )
    return descriptors


def activations(
    predictor: Predictor, graph: MolGraph, descriptors: Mapping[str, np.ndarray] | None = None
) -> Activations:
    """Follow a molecule through a model: see :class:`Activations`.

    Args:
        predictor: the model.
        graph: the molecule.
        descriptors: of it, as :meth:`Predictor.descriptors` gives them; for a model that reads some.

    Raises:
        InputError: if the model reads descriptors, and none are given.
    """
    model = predictor.model
    batch = collate([graph], require_descriptors(predictor, descriptors), **predictor.config.collate_settings).to(
        predictor.device
    )
    rows: list[Tensor] = []
    mixed: list[Tensor] = []

    def note_entry(block: nn.Module, inputs: tuple) -> None:
        x, y, _ = inputs
        rows.append(x if y is None else x + y)

    def note_mixed(output: nn.Module, inputs: tuple) -> None:
        mixed.append(inputs[0])

    hooks = [block.register_forward_pre_hook(note_entry) for block in model.blocks]
    hooks += [block.get_submodule("mixer.output").register_forward_pre_hook(note_mixed) for block in model.blocks]
    hooks.append(model.norm.register_forward_hook(lambda norm, inputs, outputs: rows.append(outputs[0])))
    try:
        with torch.inference_mode():
            prediction = model(batch)[0]
            attn_weights = model.pairs(batch, ["attn_weights"]).attn_weights[0]
    finally:
        for hook in hooks:
            hook.remove()
    distances = batch.path_distances[batch.path_types[0].long()]
    found = (torch.cat(rows), torch.cat(mixed), attn_weights, distances, prediction)
    return Activations(*(tensor.cpu().numpy() for tensor in found))
