"""What each atom adds to a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import overload

import numpy as np
import torch
from rdkit import rdBase
from torch import Tensor

from graphslice.analysis.activations import require_descriptors
from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import descriptor_kinds
from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError, graph_atom_indices, parse_molecule
from graphslice.config import MOLECULE
from graphslice.data.collate import collate
from graphslice.errors import InputError
from graphslice.inference.inputs import Columns, as_feature_columns, input_descriptors, is_graph
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.ops.threads import map_one_core_each
from graphslice.tasks import each_target

# Rows that the versions of a molecule may take in one batch.
_MAX_ROWS = 1 << 13

#: The prediction of K versions of a molecule, ``float64 [K, W]``, by which atoms ``float32 [K, N]`` each shows.
Predict = Callable[[Tensor], np.ndarray]


@dataclass
class Attribution:
    """Contributions of N atoms to the W numbers that the network puts out, or to the mean of several networks'.

    Numbers are in the unit of their target, or its natural logarithm where the network learns that; classes are logits.

    Attributes:
        values: ``float64 [N, W]``; they sum to ``prediction - baseline``.
        errors: ``float64 [N, W]``: their standard errors, from the spread over the orders drawn; 0 where
            all sets of atoms were tried.
        prediction: ``float64 [W]``.
        baseline: ``float64 [W]``: the prediction for the same bonds between blank atoms.
        names: W names, such as ``"logp"``, ``"log clearance"`` and ``"active, logit of yes"``.
        network_weight: ``float64 [W]``: of the network in the model's answer; 1 where no trees answer beside it.
        smiles: whose atoms these are, in the order in which it has them; None of a graph, whose order it is then.
            Hydrogens that RDKit takes into their atoms have no row.
    """

    values: np.ndarray
    errors: np.ndarray
    prediction: np.ndarray
    baseline: np.ndarray
    names: list[str]
    network_weight: np.ndarray
    smiles: str | None = None


@overload
def attribute(  # type: ignore[overload-overlap]  # a text is an iterable of texts too
    predictor: Predictor,
    molecules: str | MolGraph,
    *,
    orders: int = 256,
    seed: int = 0,
    columns: Columns | None = None,
    descriptors: Mapping[str, np.ndarray] | None = None,
) -> Attribution:
    """Of one molecule."""


@overload
def attribute(
    predictor: Predictor,
    molecules: Iterable[str | MolGraph],
    *,
    orders: int = 256,
    seed: int = 0,
    columns: Columns | None = None,
    descriptors: Mapping[str, np.ndarray] | None = None,
) -> list[Attribution]:
    """Of several molecules."""


def attribute(predictor, molecules, *, orders=256, seed=0, columns=None, descriptors=None):
    """Shapley values of the atoms: exact for small molecules, else by sampled orders (Castro et al. 2009).

    From blank atoms (an embedding of nothing; bonds and distances as they are) the atoms appear one
    by one, and each gets the change of the prediction at its turn; the mean over many orders is
    its contribution. In every order the changes sum to the prediction minus the baseline, whatever
    the mixer: a gradient would miss where a sort jumps. Descriptors of a model that reads them stay those of the
    whole molecule throughout, in the baseline too: what they add to a prediction is no atom's. Of several models the
    mean is explained, and of a model with trees beside it the network alone.

    Args:
        predictor: the model.
        molecules: one or many, SMILES or graphs. The atoms of a SMILES keep its order, those of a graph the graph's.
        orders: how many, rounded up to pairs of an order and its reverse, whose errors cancel in part. A
            molecule with no more sets of atoms than the orders have steps is solved by all of its sets.
        seed: of the orders.
        columns: R numbers by name, of a model that was trained with columns of a table as features.
        descriptors: of a single graph, as :meth:`Predictor.descriptors` gives them; for a model that reads some.

    Returns:
        An :class:`Attribution`, or a list of them where several molecules are given.

    Raises:
        InputError: for a SMILES that cannot be read, with the reason; columns that the model reads and that are not
            given; or descriptors of a graph that are not given.
    """
    if isinstance(molecules, str | MolGraph):
        return _attribute_one(predictor, molecules, orders, seed, columns or {}, descriptors)
    alone = is_graph(molecules) or not isinstance(molecules, Iterable)
    molecules = [molecules] if alone else list(molecules)
    for one in molecules:
        if not isinstance(one, str | MolGraph):
            raise InputError(
                f"cannot explain a {type(one).__name__}: give SMILES, or what smiles_to_graph makes of them"
            )
    named = as_feature_columns(predictor.feature_columns, columns or {}, len(molecules))
    rows = [{name: values[i : i + 1] for name, values in named.items()} for i in range(len(molecules))]
    return [
        _attribute_one(predictor, one, orders, seed, row, descriptors) for one, row in zip(molecules, rows, strict=True)
    ]


def _attribute_one(
    predictor: Predictor,
    molecule: str | MolGraph,
    orders: int,
    seed: int,
    columns: Columns,
    descriptors: Mapping[str, np.ndarray] | None,
) -> Attribution:
    if isinstance(molecule, MolGraph):
        return attribute_graph(predictor, molecule, orders=orders, seed=seed, descriptors=descriptors)
    try:
        graph, places = graph_of(predictor, molecule)
    except MoleculeError as reason:
        raise InputError(f"cannot explain {molecule!r}: {reason}") from None
    known = descriptors_of(predictor, molecule, columns)
    found = attribute_graph(predictor, graph, orders=orders, seed=seed, descriptors=known)
    return replace(found, values=found.values[places], errors=found.errors[places], smiles=molecule)


def require_molecule_level(predictor: Predictor) -> None:
    """Raise :class:`InputError` if a model answers for atoms or bonds: there is no one number that atoms add to."""
    if predictor.level != MOLECULE:
        raise InputError(
            f"the model answers for {predictor.level}s: what atoms add is said of answers for molecules alone"
        )


def graph_of(predictor: Predictor, smiles: str) -> tuple[MolGraph, np.ndarray]:
    """The graph of a SMILES as a model reads it, and ``int64 [N]``: the row there of each atom of the SMILES.

    Raises:
        MoleculeError: for what is no molecule.
    """
    settings = predictor.config.graph
    graph = smiles_to_graph(smiles, atom_order=settings.atom_order, max_atoms=settings.max_atoms)
    if settings.atom_order == "input":
        return graph, np.arange(graph.num_atoms)
    with rdBase.BlockLogs():
        return graph, np.array(graph_atom_indices(parse_molecule(smiles, settings.max_atoms)), np.int64)


def descriptors_of(predictor: Predictor, smiles: str, columns: Columns) -> dict[str, np.ndarray]:
    """What the networks read of a molecule beside its graph, for :func:`attribute_graph`.

    Raises:
        InputError: for columns that the model reads and that are not given, or the other way round.
    """
    return input_descriptors(
        [smiles], True, columns, predictor.config, descriptor_kinds(predictor.config.data.descriptors)
    )


def attribute_graph(
    predictor: Predictor,
    graph: MolGraph,
    *,
    orders: int = 256,
    seed: int = 0,
    descriptors: Mapping[str, np.ndarray] | None = None,
) -> Attribution:
    """:func:`attribute` of one graph, its atoms in the order in which it has them."""
    require_molecule_level(predictor)
    if orders < 1:
        raise InputError(f"orders must be at least 1, not {orders}")
    known = require_descriptors(predictor, descriptors)
    batch = collate([graph], known, **predictor.config.collate_settings).to(predictor.device)
    networks = [_masked_predict(model, batch) for model in predictor.models]

    names = [name for task in predictor.tasks for name in task.output_names]

    def predict(shown: Tensor) -> np.ndarray:  # without the deviations that may follow the answers
        return np.mean([network(shown) for network in networks], axis=0)[:, : len(names)]

    count, orders = graph.num_atoms, orders + orders % 2
    few = 2**count <= orders * count
    found = _exact_shapley(predict, count) if few else _sampled_shapley(predict, count, orders, seed)
    return Attribution(*found, names, _network_weights(predictor))


def _network_weights(predictor: Predictor) -> np.ndarray:
    """``float64 [W]``: of the networks in the answer, the mean over the models."""
    of_models = []
    for stacking in predictor.stackings:
        weights = np.ones(len(predictor.columns))
        for t, _, where in each_target(predictor.tasks):
            weights[where] = 1 if stacking is None else stacking.weights[0, t]
        of_models.append(weights)
    return np.mean(of_models, axis=0)


def _masked_predict(model: GraphTransformer, batch: GraphBatch) -> Predict:
    """What a network predicts for a molecule, the batch, of which some atoms are blank."""
    with torch.inference_mode():
        x, context = model.atoms(batch), model.context(batch)
    tensors_of_one = context.tensors()

    def of_chunk(shown: Tensor) -> Tensor:
        with torch.inference_mode():
            rows = torch.cat([x[:, :1].expand(len(shown), -1, -1), x[:, 1:] * shown[:, :, None]], dim=1)
            tensors = {name: t.expand(len(shown), *t.shape[1:]) for name, t in tensors_of_one.items()}
            normed = model.run_blocks(model.embedding_norm(rows), tensors)
            fixed = None if batch.descriptors is None else batch.descriptors.expand(len(shown), -1)
            return model.predict_from_rows(normed, context.mask.expand(len(shown), -1), fixed).double().cpu()

    def predict(shown: Tensor) -> np.ndarray:
        chunks = shown.to(x.device).split(max(1, _MAX_ROWS // x.shape[1]))
        found = map_one_core_each(of_chunk, chunks) if x.device.type == "cpu" else [of_chunk(chunk) for chunk in chunks]
        return torch.cat(found).numpy()

    return predict


_ShapleyValues = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _exact_shapley(predict: Predict, count: int) -> _ShapleyValues:
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
    return found, np.zeros_like(found), values[-1], values[0]


def _sampled_shapley(predict: Predict, count: int, orders: int, seed: int) -> _ShapleyValues:
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
    return changes.mean(axis=0), errors, prediction, baseline
