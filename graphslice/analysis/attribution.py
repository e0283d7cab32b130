"""What each atom adds to a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

from graphslice.analysis.trace import descriptors_given
from graphslice.chem.molecule import MolGraph
from graphslice.data.collate import collate
from graphslice.inference.predictor import Predictor

# Rows that the versions of a molecule may take in one batch.
_MOST = 1 << 13


@dataclass
class Attribution:
    """Contributions of N atoms to T predictions, in the unit of the targets.

    Attributes:
        values: ``float64 [N, T]``; they sum to ``prediction - baseline``.
        errors: ``float64 [N, T]``: their standard errors, from the spread over the orders drawn; 0 where
            all sets of atoms were tried.
        prediction: ``float64 [T]``.
        baseline: ``float64 [T]``: the prediction for the same bonds between blank atoms.
    """

    values: np.ndarray
    errors: np.ndarray
    prediction: np.ndarray
    baseline: np.ndarray


def attribute(
    predictor: Predictor,
    graph: MolGraph,
    *,
    orders: int = 256,
    seed: int = 0,
    descriptors: Mapping[str, np.ndarray] | None = None,
) -> Attribution:
    """Shapley values of the atoms: exact for small molecules, else by sampled orders (Castro et al. 2009).

    From blank atoms (an embedding of nothing; bonds and distances as they are) the atoms appear one
    by one, and each gets the change of the prediction at its turn; the mean over many orders is
    its contribution. In every order the changes sum to the prediction minus the baseline, whatever
    the mixer: a gradient would miss where a sort jumps. Descriptors of a model that reads them stay those of the
    whole molecule throughout, in the baseline too: what they add to a prediction is no atom's.

    Args:
        predictor: the model.
        graph: the molecule.
        orders: how many, rounded up to pairs of an order and its reverse, whose errors cancel in part. A
            molecule with no more sets of atoms than the orders have steps is solved by all of its sets.
        seed: of the orders.
        descriptors: of the molecule, as :meth:`Predictor.descriptors` gives them; for a model that reads some.

    Raises:
        InputError: if the model reads descriptors, and none are given.
    """
    model, device = predictor.model, predictor.device
    batch = collate([graph], descriptors_given(predictor, descriptors), **predictor.config.collate_settings).to(device)
    count, orders = graph.num_atoms, orders + orders % 2
    with torch.inference_mode():
        x, context = model.atoms(batch), model.context(batch)

        def predict(shown: Tensor) -> np.ndarray:
            """``float64 [K, T]`` for K versions of the molecule, of which the atoms ``[K, N]`` are shown."""
            found = []
            for chunk in shown.to(device).split(max(1, _MOST // (count + 1))):
                rows = torch.cat([x[:, :1].expand(len(chunk), -1, -1), x[:, 1:] * chunk[:, :, None]], dim=1)
                tensors = {name: t.expand(len(chunk), *t.shape[1:]) for name, t in context.tensors().items()}
                normed = model.run_blocks(model.embedding_norm(rows), tensors)
                mask = context.mask.expand(len(chunk), -1)
                fixed = None if batch.descriptors is None else batch.descriptors.expand(len(chunk), -1)
                found.append(model.predicted(normed, mask, fixed).double().cpu())
            return torch.cat(found).numpy()

        if 2**count <= orders * count:
            return _by_all_sets(predict, count)
        return _by_orders(predict, count, orders, seed)


def _by_all_sets(predict: Callable[[Tensor], np.ndarray], count: int) -> Attribution:
    """Shapley values by their definition, from the prediction of every set of atoms."""
    sets = np.arange(2**count)
    shown = (sets[:, None] >> np.arange(count)) & 1
    values = predict(torch.from_numpy(shown).float())
    size = shown.sum(1)
    weights = np.array([1 / (count * comb(count - 1, k)) for k in range(count)])
    contributions = []
    for atom in range(count):
        without = sets[shown[:, atom] == 0]
        change = values[without | 1 << atom] - values[without]
        contributions.append((weights[size[without], None] * change).sum(axis=0))
    found = np.stack(contributions)
    return Attribution(found, np.zeros_like(found), values[-1], values[0])


def _by_orders(predict: Callable[[Tensor], np.ndarray], count: int, orders: int, seed: int) -> Attribution:
    random = np.random.default_rng(seed)
    drawn = [random.permutation(count) for _ in range(orders // 2)]
    drawn = [order for pair in drawn for order in (pair, pair[::-1])]
    # Step k of an order shows its first k atoms.
    ranks = torch.from_numpy(np.argsort(np.stack(drawn), axis=1))
    shown = (ranks[:, None, :] < torch.arange(count + 1)[:, None]).float()
    between = predict(shown[:, 1:-1].reshape(-1, count))
    baseline, prediction = predict(shown[0, [0, -1]])
    values = np.empty((len(drawn), count + 1, len(baseline)))
    values[:, 0], values[:, -1] = baseline, prediction
    values[:, 1:-1] = between.reshape(len(drawn), count - 1, len(baseline))
    changes = np.empty((len(drawn), count, len(baseline)))
    np.put_along_axis(changes, np.stack(drawn)[:, :, None], np.diff(values, axis=1), axis=1)
    pairs = changes.reshape(len(drawn) // 2, 2, count, -1).mean(axis=1)
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs)) if len(pairs) > 1 else np.full(pairs.shape[1:], np.nan)
    return Attribution(changes.mean(axis=0), errors, prediction, baseline)
