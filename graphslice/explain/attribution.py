"""Atom contributions to predictions as Shapley values, activations of a model for one molecule, and texts about them.

Console, table and figures share these texts and digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import comb, floor, isfinite, log10

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.special import logsumexp
from torch import Tensor

from graphslice.batch import GraphBatch
from graphslice.chem.molecule import MolGraph, smiles_to_graph
from graphslice.chem.parse import (
    MoleculeError,
    graph_atom_indices,
    parent_smiles,
    parse_molecule,
    rdkit_messages_blocked,
)
from graphslice.config import MOLECULE
from graphslice.data.batches import collate
from graphslice.errors import InputError, check_number, nearest, quoted_list
from graphslice.inference.inputs import Columns
from graphslice.inference.predictor import Predictor
from graphslice.inference.torch_networks import tf32_matmul
from graphslice.nn import GraphTransformer
from graphslice.nn.context import AttentionContext
from graphslice.ops.dispatch import reference_only
from graphslice.stacking.stacking import SMALL_WEIGHT
from graphslice.system.threads import map_one_core_each
from graphslice.tasks import BINARY, MULTICLASS, REGRESSION, Task, describe_class, each_target, output_slices

# Maximum number of rows (atoms and graph tokens) of all masked copies of a molecule in one batch.
_MAX_ROWS = 1 << 13

#: Predict K masked copies of a molecule, ``float64 [K, W]``, from masks ``float32 [K, N]``: 1 for a visible atom.
Predict = Callable[[Tensor], np.ndarray]


@dataclass
class Attribution:
    """Contributions of N atoms to the W outputs of a network, or to their mean over several networks. Regression
    outputs are in the unit of the target, or its natural logarithm for targets with a log transform; class outputs
    are logits, the log-odds of each class."""

    values: np.ndarray  # float64 [N, W]; they sum to ``prediction - baseline``
    errors: np.ndarray
    """``float64 [N, W]``, standard errors, from the spread over the sampled permutations; 0 for exact values."""
    prediction: np.ndarray  # float64 [W]
    baseline: np.ndarray  # float64 [W], prediction for the same bonds between blank atoms
    names: list[str]  # W names, such as "logp", "log clearance" and "active, logit of yes"
    network_weight: np.ndarray  # float64 [W], of the network in the model's prediction; 1 without base models


def attribute(
    predictor: Predictor, smiles: str, *, orders: int = 256, seed: int = 0, columns: Columns | None = None
) -> Attribution:
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
        smiles: SMILES of one molecule, whose order of the atoms the contributions have. Hydrogens that RDKit merges
            into their heavy atoms have no row.
        orders: number of sampled permutations, rounded up to pairs of a permutation and its reverse, whose errors
            partly cancel. If a molecule has no more subsets of atoms than there are sampling steps, all subsets are
            evaluated instead and the values are exact.
        seed: random seed of the permutations.
        columns: a number for each feature column, for a model trained with columns of a table as features.

    Raises:
        InputError: if the SMILES is invalid (with the reason), or if feature columns of the model are missing.
    """
    require_molecule_level(predictor)
    check_number("orders", orders, 1)
    try:
        graph, atom_rows = graph_of(predictor, smiles)
    except MoleculeError as reason:
        raise InputError(f"cannot explain {smiles!r}: {reason}") from None
    batch = collate_one(predictor, graph, predictor.descriptors(smiles, columns))
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
    values, errors, prediction, baseline = results
    return Attribution(values[atom_rows], errors[atom_rows], prediction, baseline, names, _network_weights(predictor))


def require_molecule_level(predictor: Predictor) -> None:
    """Raise :class:`InputError` unless the model predicts molecule-level targets."""
    if predictor.level != MOLECULE:
        raise InputError(
            f"atom contributions require molecule-level targets; this model predicts {predictor.level}-level targets"
        )


def graph_of(predictor: Predictor, smiles: str) -> tuple[MolGraph, np.ndarray]:
    """Build the graph of a SMILES with the settings of a model, and return ``int64 [N]`` too, the row in the graph of
    each atom of the SMILES; raises MoleculeError if it is not a valid molecule, or the model standardizes it."""
    settings = predictor.config.graph
    graph = smiles_to_graph(smiles, atom_order=settings.atom_order, max_atoms=settings.max_atoms)
    if settings.standardize != "none" and (parent := parent_smiles(smiles, settings.max_atoms)) != smiles:
        raise MoleculeError(f"the model reads its parent compound: give {parent} instead")
    if settings.atom_order == "input":
        return graph, np.arange(graph.num_atoms)
    with rdkit_messages_blocked():
        return graph, np.array(graph_atom_indices(parse_molecule(smiles, settings.max_atoms)), np.int64)


def _log_odds(outputs: np.ndarray) -> np.ndarray:
    """Return the log-odds of each class from the inputs of a softmax, ``[R, K]`` both; those are defined up to a number
    that all classes share, so they can rise while the probability falls."""
    without_class = np.where(np.eye(outputs.shape[1], dtype=bool), -np.inf, outputs[:, None, :])
    return outputs - logsumexp(without_class, axis=2)


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


@dataclass
class Activations:
    """Activations of a model with L blocks for one molecule of N atoms; row 0 is the graph token."""

    rows: np.ndarray  # float32 [L + 1, N + 1, C], input of each of the L blocks, and output of the last
    mixed: np.ndarray  # float32 [L, N + 1, C], input of the output projection of each mixer
    attn_weights: np.ndarray  # float32 [H, N + 1, N + 1], P = Softmax(S + E), also for mixers that use S + E without it
    distances: np.ndarray  # int32 [N, N], path lengths in bonds; 510 between fragments
    prediction: np.ndarray  # float32 [T], in the unit of the targets


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
    """Compute the activations of a model for one molecule; raises :class:`InputError` if it expects ``descriptors`` (of
    :meth:`Predictor.descriptors`) and none are given."""
    predictor.require_single()
    model, batch = predictor.networks.as_torch().modules[0], collate_one(predictor, graph, descriptors)
    rows: list[Tensor] = []
    mixed: list[Tensor] = []
    recorded: list[tuple[torch.nn.Module, list[Tensor]]] = [(module, rows) for module in (*model.blocks, model.norm)]
    recorded += [(block.get_submodule("mixer.output"), mixed) for block in model.blocks]
    with torch.inference_mode(), ExitStack() as hooks:
        for module, inputs in recorded:
            hook = module.register_forward_pre_hook(lambda _, args, inputs=inputs: inputs.append(args[0]))
            hooks.enter_context(hook)
        prediction = model(batch)[0]
        attn_weights = model.pairs(batch, ["attn_weights"]).attn_weights[0]
    distances = batch.path_distances[batch.path_types[0].long()]
    tensors = (torch.cat(rows), torch.cat(mixed), attn_weights, distances, prediction)
    return Activations(*(tensor.cpu().numpy() for tensor in tensors))


def implicit_map(
    predictor: Predictor,
    graph: MolGraph,
    layer: int,
    channel: int,
    *,
    from_values: bool = False,
    descriptors: Mapping[str, np.ndarray] | None = None,
) -> csr_array:
    """Compute the matrix M by which the mixer of a layer maps a channel, ``float32 [N + 1, N + 1]``: what it makes of
    the column ``(P V)_c`` is ``M (P V)_c``, or with ``from_values`` ``M V_c``, so that P is part of M.

    The matrix is the Jacobian of the mixer's operator at the column, for a sort a permutation. Raises
    :class:`InputError` if the operator is not a matrix times the column.
    """
    predictor.require_single()
    model, batch = predictor.networks.as_torch().modules[0], collate_one(predictor, graph, descriptors)
    check_number("layer", layer, 0, len(model.blocks) - 1)
    check_number("channel", channel, 0, model.config.dim - 1)
    mixer = model.blocks[layer].mixer
    to_values, inputs = mixer.get_submodule("value"), []
    with torch.no_grad(), mixer.register_forward_pre_hook(lambda mixer, args: inputs.append(args)):
        model(batch)
        [(x, context)] = inputs
        output, values = mixer.mix(x, context)[0, :, channel], to_values(x)
    if not from_values and "attn_weights" in mixer.reads:  # without a graph, the mixer takes P V for V
        values, context = context.aggregate(values), AttentionContext(context.lengths, context.width)

    def mix_column(column: Tensor) -> Tensor:
        replaced = values.clone()
        replaced[0, :, channel] = column
        with to_values.register_forward_hook(lambda *_: replaced):
            return mixer.mix(x, context)[0, :, channel]

    column = values[0, :, channel]
    with reference_only():  # kernels give the gradient of one output, not of each
        matrix = torch.autograd.functional.jacobian(mix_column, column)
    if not torch.allclose(matrix @ column, output, rtol=1e-3, atol=1e-4 * float(column.abs().max())):
        source = "V" if from_values else "P V (from_values=True takes V)"
        raise InputError(f"the output of mixer {model.config.mixer} is not a matrix times a column of {source}")
    return csr_array(matrix.cpu().numpy())


#: Legend and meaning of blue and red where the molecules are explained for different classes.
SEVERAL_CLASSES = ("contribution to the logit of the class named with each molecule", "away from it", "towards it")
# Numbers with more decimals, or larger ones, are written with a power of ten.
_MAX_DECIMALS, _LARGEST = 4, 1e5


@dataclass(frozen=True)
class Digits:
    """Number format of one molecule: the same number of decimals and the same power of ten for all values."""

    decimals: int
    power: int = 0  # exponent of the power of ten by which very large or very small values are divided

    @classmethod
    def of(cls, values: np.ndarray, error: float) -> Digits:
        """Choose two or three digits of the largest value, none below ``error``, the standard error (0: unknown)."""
        largest = float(np.abs(values).max(initial=0))
        if not isfinite(largest) or largest < 1e-30:
            return cls(2)
        by_size = round(2 - log10(largest))
        decimals = min(by_size, _places(error)) if error > 0 else by_size
        if decimals <= _MAX_DECIMALS and largest < _LARGEST:
            return cls(max(0, decimals))
        power = floor(log10(largest))
        return cls(min(2, max(0, decimals + power)), power)

    def rounded(self, value: float) -> float:
        """Round a number to the digits that are displayed."""
        return round(value / 10.0**self.power, self.decimals) * 10.0**self.power + 0.0  # + 0.0 removes a negative zero

    def text(self, value: float, sign: bool = False) -> str:
        """Format a number without its power of ten; ``sign``: with a plus or minus sign, except before zero."""
        number = round(value / 10.0**self.power, self.decimals) + 0.0
        return f"{number:{'+' if sign and number else ''}.{self.decimals}f}".replace("-", "\N{MINUS SIGN}")

    def plain(self, value: float) -> str:
        """Format a number for the CSV file, with the same digits, and with an exponent if ``power`` is not 0."""
        return self.text(value).replace("\N{MINUS SIGN}", "-") + (f"e{self.power}" if self.power else "")

    @property
    def times(self) -> str:
        """Suffix with the power of ten, such as `` x 10^6``; empty if ``power`` is 0."""
        return f" x 10^{self.power}" if self.power else ""


@dataclass(frozen=True)
class Explanation:
    """Atom contributions to one network output, with the texts that describe it."""

    quantity: str  # such as ``logp``, ``ln(clearance)``, ``logit of active = yes``
    legend: str
    down: str  # meaning of blue
    up: str  # meaning of red
    values: np.ndarray  # float64 [N]
    errors: np.ndarray  # float64 [N], standard errors; nan if unknown
    weight: float  # of the network in the model's prediction
    prediction: float  # of the network
    baseline: float  # for blank atoms
    digits: Digits
    model_prediction: str  # if it differs from that of the network or is on another scale; else empty
    notes: tuple[str, ...]

    @property
    def error_text(self) -> str:
        """Largest standard error, ``standard errors up to 0.02``; empty if exact or unknown."""
        error = _largest_error(self.errors)
        return f"standard errors up to {error:.1g}" if error > 0 else ""

    @property
    def warning(self) -> str:
        """Warning if the weight of the network in the prediction is small; else empty."""
        return weight_warning(self.weight)

    @property
    def sum(self) -> str:
        """Decomposition ``2.31 = 1.10 (baseline) + 1.21 (atoms)``, which adds up as displayed."""
        total, baseline = self.digits.rounded(self.prediction), self.digits.rounded(self.baseline)
        added = self.digits.text(abs(total - baseline))
        sign = "+" if total >= baseline else "\N{MINUS SIGN}"
        text = f"{self.digits.text(total)} = {self.digits.text(baseline)} (baseline) {sign} {added} (atoms)"
        return f"({text}){self.digits.times}" if self.digits.power else text


def explain_targets(
    predictor: Predictor, smiles: str, *, orders: int = 256, columns: Columns | None = None
) -> list[Explanation]:
    """Explain the prediction of each target of a molecule; arguments and errors as of :func:`attribute`."""
    attribution = attribute(predictor, smiles, orders=orders, columns=columns)
    (predictions,) = predictor.predict(smiles, columns=columns)
    tasks = predictor.tasks
    return [explain_target(attribution, predictions, tasks, t, predictor.num_models) for t in range(len(tasks))]


def explain_target(
    attribution: Attribution, predictions: np.ndarray, tasks: Sequence[Task], target: int, models: int
) -> Explanation:
    """Describe the contributions to one target of a molecule; of several classes, the most probable one is explained.
    ``predictions``: ``float32 [W]``, those of the complete model; ``models``: number of averaged networks."""
    task, where = tasks[target], output_slices(tasks)[target]
    column = where.start + (int(np.argmax(predictions[where])) if task.kind == MULTICLASS else 0)
    values, errors = attribution.values[:, column], attribution.errors[:, column]
    digits = Digits.of(values, _largest_error(errors))
    quantity, legend, down, up = _legend_texts(task, column - where.start)
    weight = float(attribution.network_weight[column])
    notes = [f"mean of {models} networks"] if models > 1 else []
    if weight < 1:
        notes.append(f"network only: weight {weight:.2f} in the prediction, base models have the rest")
    predicted = predictions[where]
    text = describe_class(predicted, task) if task.classes else short_number(float(predicted[0]))
    plain = task.kind == REGRESSION and task.transform == "none" and weight == 1
    model_prediction = "" if plain else f"{task.name} {text}"
    totals = float(attribution.prediction[column]), float(attribution.baseline[column])
    return Explanation(
        quantity, legend, down, up, values, errors, weight, *totals, digits, model_prediction, tuple(notes)
    )


def _legend_texts(task: Task, index: int) -> tuple[str, str, str, str]:
    """Return the name of the output, the legend, and the meanings of blue and red."""
    name = task.name
    if task.kind == REGRESSION and task.transform == "log":
        legend = f"contribution to the natural logarithm of {name} (+0.69 doubles it)"
        return f"ln({name})", legend, f"lowers {name}", f"raises {name}"
    if task.kind == REGRESSION:
        return name, f"contribution to {name}, in its unit", f"lowers {name}", f"raises {name}"
    named = task.classes[1] if task.kind == BINARY else task.classes[index]
    quantity = f"logit of {name} = {named}"
    away = f"towards {task.classes[0]}" if task.kind == BINARY else f"away from {named}"
    return quantity, f"contribution to the {quantity}", away, f"towards {named}"


def short_number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the decimal point."""
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:#.3g}".rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}")


def _largest_error(errors: np.ndarray) -> float:
    return float(errors.max()) if np.isfinite(errors).all() else 0.0


def _places(error: float) -> int:
    return -floor(log10(float(f"{error:.0e}")))


def weight_warning(weight: float) -> str:
    """Return a warning if the network, which is explained, has a small weight in the prediction; else an empty text."""
    if weight >= SMALL_WEIGHT:
        return ""
    return (
        f"these atom contributions explain little of the model's predictions: the weight of the network is "
        f"{weight:.2f}; base models, which are not explained, have the rest"
    )


def match_target(text: str | None, names: Sequence[str]) -> int:
    """Return the index of a target, given its name or a part of it that only one target has, in any case; None is the
    first. Raises :class:`InputError` if no target matches, or more than one."""
    if text is None:
        return 0
    if text in names:
        return list(names).index(text)
    lowered = text.strip().lower()
    matches = [name for name in names if name.lower() == lowered] or [name for name in names if lowered in name.lower()]
    if len(matches) != 1 or not lowered:
        found = f"{quoted_list(matches)} match: give more of its name" if matches else f"it has {quoted_list(names)}"
        raise InputError(f"the model has no target {text!r}{nearest(text, names)}: {found}")
    return list(names).index(matches[0])
