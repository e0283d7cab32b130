"""Molecules by hand, right and wrong ones, made into batches; and batches by hand."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzzing.mutations import NUMBERS, odd_value
from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolGraph
from graphslice.data.batches import collate
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS
from graphslice.nn.encodings import PairEncoder


def target(folder: Path) -> Callable[[random.Random], None]:
    pairs = PairEncoder(2, "ogb", 64, 5, 5, False)

    def run(draw: random.Random) -> None:
        graphs = [_graph(draw) for _ in range(draw.choice((1, 1, 2, 3)))]
        if draw.random() < 0.5:
            graphs[-1] = _corrupted(draw, graphs[-1])
        settings: dict[str, Any] = {"path_ties": draw.choice(("mean", "floyd-warshall"))}
        if draw.random() < 0.3:
            settings["max_path"] = draw.choice((-1, 0, 1, 2, 5, 60, 509, 510, 2**31, 2**62))
        if draw.random() < 0.2:
            settings["multiple"] = draw.choice((-8, 0, 1, 2, 7, 64))
        batch = collate(graphs, **settings)
        GraphBatch(**vars(batch))  # what we make passes as what others make
        ends = [*batch.path_ptr[1:].tolist(), len(batch.path_codes)]
        sums = np.add.reduceat(np.append(batch.path_weights.numpy(), 0), batch.path_ptr.numpy())
        full = np.diff([0, *ends]) > 0
        if not np.allclose(sums[full], 1, atol=1e-4):
            raise AssertionError("the weights of a path type do not sum to 1")
        if draw.random() < 0.3:
            name = draw.choice([field.name for field in dataclasses.fields(batch)][:8])
            batch = dataclasses.replace(batch, **{name: _changed(draw, getattr(batch, name))})
            if len(batch.path_codes) == 0 or batch.path_codes.max() < 5 * 60:
                context = pairs(batch)
                if context.attn_weights.shape[2] != batch.atoms.shape[1] + 1:
                    raise AssertionError("attention weights of another width")

    return run


def _graph(draw: random.Random) -> MolGraph:
    """Some fragments with some rings."""
    size = draw.choice((1, 2, 3, 5, 8, 12, draw.randrange(1, 30), draw.choice((63, 64, 65, 90))))
    found: dict[tuple[int, int], None] = {}
    for atom in range(1, size):
        if draw.random() < 0.95:
            found[draw.randrange(max(0, atom - 4), atom), atom] = None
    for _ in range(draw.randrange(1 + size // 3)):
        a, b = draw.randrange(size), draw.randrange(size)
        if a < b:
            found[a, b] = None
    bonds = np.array(list(found), np.int32).reshape(-1, 2)
    seed = np.random.default_rng(draw.randrange(2**32))
    features = seed.integers(0, BOND_DIMS if draw.random() < 0.5 else (2, 1, 1), (len(bonds), 3)).astype(np.uint8)
    return MolGraph(seed.integers(0, ATOM_DIMS, (size, 9)).astype(np.uint8), bonds, features)


def _corrupted(draw: random.Random, graph: MolGraph) -> MolGraph:
    """The graph with something else in one of its arrays."""
    name = draw.choice(("atoms", "bonds", "bonds", "bond_features"))
    array: Any = getattr(graph, name).copy()
    kind = draw.randrange(8)
    if kind < 4 and array.size:
        array = array.astype(np.int64) if draw.random() < 0.3 else array
        limits = np.iinfo(array.dtype)
        number = draw.choice((*NUMBERS, -1, graph.num_atoms, graph.num_atoms - 1))
        array.reshape(-1)[draw.randrange(array.size)] = min(max(number, limits.min), limits.max)
    elif kind == 4:
        array = array.astype(draw.choice((np.int64, np.float32, np.float64, np.uint16, bool, object, complex)))
    elif kind == 5:
        array = draw.choice((array.T, array[:-1], array[:, :-1], array[::-1], array[:0], array.reshape(-1)))
    elif kind == 6:
        array = np.concatenate([array, array])
    else:
        array = odd_value(draw)
    return dataclasses.replace(graph, **{name: array})


def _changed(draw: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    kind = draw.randrange(4)
    if kind < 2 and tensor.numel():
        tensor = tensor.clone()
        number = draw.choice((*NUMBERS, -1, -2, -(2**31)))
        if tensor.dtype.is_floating_point:
            tensor.view(-1)[draw.randrange(tensor.numel())] = float(number)
        else:
            limits = torch.iinfo(tensor.dtype)
            tensor.view(-1)[draw.randrange(tensor.numel())] = min(max(number, limits.min), limits.max)
        return tensor
    return tensor[:-1] if kind == 2 else torch.cat([tensor, tensor])
