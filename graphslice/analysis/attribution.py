"""Atom contributions to predictions as Shapley values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import overload

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from graphslice.analysis.activations import collate_one
from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import MoleculeError, graph_atom_indices, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.chem.standardize import parent_smiles
from graphslice.config import MOLECULE
from graphslice.errors import InputError
from graphslice.inference.gpu import tf32_matmul
from graphslice.inference.inputs import Columns, as_feature_columns, is_graph
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.tasks import MULTICLASS, each_target
from graphslice.threads import map_one_core_each

# Maximum number of rows (atoms and graph tokens) of all masked copies of a molecule in one batch.
_MAX_ROWS = 1 << 13

#: Predict K masked copies of a molecule, ``float64 [K, W]``, from masks ``float32 [K, N]``: 1 for a visible atom.
Predict = Callable[[Tensor], np.ndarray]


@dataclass
class Attribution:
    """Contributions of N atoms to the W outputs of a network, or to their mean over several networks.

    Regression outputs are in the unit of the target, or its natural logarithm for targets with a log transform; class
    outputs are logits, the log-odds of each class.

    Attributes:
        values: ``float64 [N, W]``; they sum to ``prediction - baseline``.
        errors: ``float64 [N, W]``, standard errors, estimated from the spread over the sampled permutations; 0 if the
            Shapley values are exact.
        prediction: ``float64 [W]``.
        baseline: ``float64 [W]``, prediction for the same bonds between blank atoms.
        names: W names, such as ``"logp"``, ``"log clearance"`` and ``"active, logit of yes"``.
        network_weight: ``float64 [W]``, weight of the network in the model's prediction; 1 without base models.
        smiles: SMILES whose atom order ``values`` have; None for a graph, whose atom order they have then. Hydrogens
            that RDKit merges into their heavy atoms have no row.
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
    """Attribute one molecule."""


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
    """Attribute several molecules."""


def attribute(predictor, molecules, *, orders=256, seed=0, columns=None, descriptors=None):
    """Compute Shapley values of the atoms: exact for small molecules, otherwise by sampling (Castro et al. 2009).

    All atoms start blank: their embedding is zero, while bonds and distances stay as they are. Atoms are then added one
    by one in a random order, and each is credited with the change of the prediction; its contribution is the mean over
    many orders. In every order the changes sum to the prediction minus the baseline, for every mixer; a gradient would
    miss the discontinuities of a sort.

    Molecular descriptors stay those of the complete molecule throughout, also in the baseline, so their contribution is
    not assigned to any atom. For an ensemble the mean prediction is explained. For a model with base models, only
    the network is explained.

    Args:
        predictor: model.
        molecules: one or many SMILES or graphs. Contributions are in the atom order of the SMILES or graph.
        orders: number of sampled permutations, rounded up to pairs of a permutation and its reverse, whose errors
            partly cancel. If a molecule has no more subsets of atoms than there are sampling steps, all subsets are
            evaluated instead and the values are exact.
        seed: random seed of the permutations.
        columns: feature columns by name, R numbers each, for a model trained with columns of a table as features.
        descriptors: descriptors of a single graph from :meth:`Predictor.descriptors`, for a model that uses any.

    Returns:
        An :class:`Attribution`, or a list of them for several molecules.

    Raises:
        InputError: if a SMILES is invalid (with the reason), if feature columns of the model are missing, or if
            descriptors are required for a graph and missing.
    """
    if isinstance(molecules, str | MolGraph):
        return _attribute_one(predictor, molecules, orders, seed, columns or {}, descriptors)
    is_single = is_graph(molecules) or not isinstance(molecules, Iterable)
    molecules = [molecules] if is_single else list(molecules)
    for one in molecules:
        if not isinstance(one, str | MolGraph):
            raise InputError(
                f"cannot explain a {type(one).__name__}: give SMILES strings or graphs made by smiles_to_graph"
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
        return _attribute_graph(predictor, molecule, orders, seed, descriptors)
    try:
        graph, atom_rows = graph_of(predictor, molecule)
    except MoleculeError as reason:
        raise InputError(f"cannot explain {molecule!r}: {reason}") from None
    attribution = _attribute_graph(predictor, graph, orders, seed, predictor.descriptors(molecule, columns))
    values, errors = attribution.values[atom_rows], attribution.errors[atom_rows]
    return replace(attribution, values=values, errors=errors, smiles=molecule)


def require_molecule_level(predictor: Predictor) -> None:
    """Raise :class:`InputError` unless the model predicts molecule-level targets."""
    if predictor.level != MOLECULE:
        raise InputError(
            f"atom contributions require molecule-level targets; this model predicts {predictor.level}-level targets"
        )


def graph_of(predictor: Predictor, smiles: str) -> tuple[MolGraph, np.ndarray]:
    """Build the graph of a SMILES with the settings of a model.

    Returns:
        The graph, and ``int64 [N]``: the row in the graph of each atom of the SMILES.

    Raises:
        MoleculeError: if the SMILES is not a valid molecule, or the model standardizes it.
    """
    settings = predictor.config.graph
    if settings.standardize != "none" and (parent := parent_smiles(smiles, settings.max_atoms)) != smiles:
        raise MoleculeError(f"the model reads its parent compound: give {parent} instead")
    graph = smiles_to_graph(smiles, atom_order=settings.atom_order, max_atoms=settings.max_atoms)
    if settings.atom_order == "input":
        return graph, np.arange(graph.num_atoms)
    with rdkit_messages_blocked():
        return graph, np.array(graph_atom_indices(parse_molecule(smiles, settings.max_atoms)), np.int64)


def _attribute_graph(
    predictor: Predictor, graph: MolGraph, orders: int, seed: int, descriptors: Mapping[str, np.ndarray] | None
) -> Attribution:
    require_molecule_level(predictor)
    if orders < 1:
        raise InputError(f"orders must be at least 1, not {orders}")
    batch = collate_one(predictor, graph, descriptors)
    networks = [_masked_predict(model, batch) for model in predictor.networks.as_torch().modules]
    names = [name for task in predictor.tasks for name in task.output_names]

    def predict(visible: Tensor) -> np.ndarray:
        # Columns of predicted standard deviations may follow those of the predictions.
        outputs = np.mean([network(visible) for network in networks], axis=0)[:, : len(names)]
        for _, task, columns in each_target(predictor.tasks):
            if task.kind == MULTICLASS:
                outputs[:, columns] = _log_odds(outputs[:, columns])
        return outputs

    count, orders = graph.num_atoms, orders + orders % 2
    is_exact = 2**count <= orders * count
    results = _exact_shapley(predict, count) if is_exact else _sampled_shapley(predict, count, orders, seed)
    return Attribution(*results, names, _network_weights(predictor))


def _log_odds(outputs: np.ndarray) -> np.ndarray:
    """Return the log-odds of each class against the others, ``[R, K]``, from the inputs of a softmax, ``[R, K]``.

    These inputs are defined up to a number that all classes share, so they can rise while the probability falls.
    """
    others = np.where(np.eye(outputs.shape[1], dtype=bool), -np.inf, outputs[:, None, :])
    return outputs - logsumexp(others, axis=2)


def _network_weights(predictor: Predictor) -> np.ndarray:
    """Compute the weight of the network in the prediction, ``float64 [W]``, averaged over the models."""
    weights_by_model = []
    for stacking in predictor.stackings:
        weights = np.ones(len(predictor.columns))
        for t, _, where in each_target(predictor.tasks):
            weights[where] = 1 if stacking is None else stacking.weights[0, t]
        weights_by_model.append(weights)
    return np.mean(weights_by_model, axis=0)


def _masked_predict(model: GraphTransformer, batch: GraphBatch) -> Predict:
    """Return a function that predicts a molecule (a batch of one) with some of its atoms blank."""
    with torch.inference_mode():
        x, context = model.atoms(batch), model.context(batch)
    single = context.tensors()

    def predict_chunk(visible: Tensor) -> Tensor:
        with torch.inference_mode(), tf32_matmul(x.device, model.config.mixer):
            rows = torch.cat([x[:, :1].expand(len(visible), -1, -1), x[:, 1:] * visible[:, :, None]], dim=1)
            tensors = {name: t.expand(len(visible), *t.shape[1:]) for name, t in single.items()}
            normed = model.run_blocks(model.embedding_norm(rows), tensors)
            fixed = None if batch.descriptors is None else batch.descriptors.expand(len(visible), -1)
            return model.predict_from_rows(normed, context.lengths.expand(len(visible)), fixed).cpu().double()

    def predict(visible: Tensor) -> np.ndarray:
        chunks = visible.to(x.device).split(max(1, _MAX_ROWS // x.shape[1]))
        on_cpu = x.device.type == "cpu"
        outputs = map_one_core_each(predict_chunk, chunks) if on_cpu else list(map(predict_chunk, chunks))
        return torch.cat(outputs).numpy()

    return predict


_ShapleyValues = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _exact_shapley(predict: Predict, count: int) -> _ShapleyValues:
    """Compute Shapley values by their definition, from the predictions of all subsets of atoms."""
    subsets = np.arange(2**count)
    visible = (subsets[:, None] >> np.arange(count)) & 1
    values = predict(torch.from_numpy(visible).float())
    size = visible.sum(1)
    weights = np.array([1 / (count * comb(count - 1, k)) for k in range(count)])
    contributions = []
    for atom in range(count):
        without = subsets[visible[:, atom] == 0]
        change = values[without | 1 << atom] - values[without]
        contributions.append((weights[size[without], None] * change).sum(axis=0))
    values_by_atom = np.stack(contributions)
    return values_by_atom, np.zeros_like(values_by_atom), values[-1], values[0]


def _sampled_shapley(predict: Predict, count: int, orders: int, seed: int) -> _ShapleyValues:
    """Estimate Shapley values and standard errors from sampled permutations and their reverses."""
    random = np.random.default_rng(seed)
    permutations = [random.permutation(count) for _ in range(orders // 2)]
    permutations = [order for pair in permutations for order in (pair, pair[::-1])]
    # At step k of a permutation, its first k atoms are visible.
    ranks = torch.from_numpy(np.argsort(np.stack(permutations), axis=1))
    visible = (ranks[:, None, :] < torch.arange(count + 1)[:, None]).float()
    between = predict(visible[:, 1:-1].reshape(-1, count))
    baseline, prediction = predict(visible[0, [0, -1]])
    values = np.empty((len(permutations), count + 1, len(baseline)))
    values[:, 0], values[:, -1] = baseline, prediction
    values[:, 1:-1] = between.reshape(len(permutations), count - 1, len(baseline))
    changes = np.empty((len(permutations), count, len(baseline)))
    np.put_along_axis(changes, np.stack(permutations)[:, :, None], np.diff(values, axis=1), axis=1)
    pairs = changes.reshape(len(permutations) // 2, 2, count, -1).mean(axis=1)
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs)) if len(pairs) > 1 else np.full(pairs.shape[1:], np.nan)
    return changes.mean(axis=0), errors, prediction, baseline
