"""One molecule on its way through a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphslice.chem.molecule import MolGraph
from graphslice.data.collate import collate
from graphslice.inference.predictor import Predictor
from graphslice.nn.mixers import Mixer


@dataclass
class Trace:
    """What a model computes for one molecule of N atoms; row 0 of all is the graph token.

    Attributes:
        rows: ``float32 [L + 1, N + 1, C]``: what enters each of L blocks, and what leaves the last.
        mixed: ``float32 [L, N + 1, C]``: what each mixer gives its output projection.
        map: ``float32 [H, N + 1, N + 1]``: ``P = Softmax(S + E)``, also where the mixer reads S + E alone.
        distances: ``int32 [N, N]`` in bonds; 510 between fragments.
        prediction: ``float32 [T]`` in the unit of the targets.
    """

    rows: np.ndarray
    mixed: np.ndarray
    map: np.ndarray
    distances: np.ndarray
    prediction: np.ndarray


def trace(predictor: Predictor, graph: MolGraph) -> Trace:
    """Follow a molecule through a model: see :class:`Trace`."""
    model = predictor.model
    batch = collate([graph], **predictor.config.collate_settings).to(predictor.device)
    rows: list[Tensor] = []
    mixed: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, given, out: rows.extend((given[0], out[0]))) for block in model.blocks
    ]
    try:
        with torch.inference_mode(), _watched([block.mixer for block in model.blocks], mixed):
            prediction = model(batch)[0]
            structure = model.pairs(batch).map[0]
    finally:
        for hook in hooks:
            hook.remove()
    depths = torch.cat([rows[0], *rows[1::2]])
    distances = batch.walk_distances[batch.pairs[0].long()]
    found = (depths, torch.cat(mixed), structure, distances, prediction)
    return Trace(*(tensor.cpu().numpy() for tensor in found))


@contextmanager
def _watched(mixers: list[Mixer], into: list[Tensor]) -> Iterator[None]:
    """Note what every mixer mixes: it is a method of the block's, of which torch has no hook."""

    def watch(mixer: Mixer) -> None:
        def mixed(x: Tensor, structure) -> Tensor:
            into.append(type(mixer).mixed(mixer, x, structure))
            return into[-1]

        mixer.mixed = mixed

    try:
        for mixer in mixers:
            watch(mixer)
        yield
    finally:
        for mixer in mixers:
            del mixer.mixed
