"""Theorems on attention and sorts, and what they say about trained models: bounds on the rank collapse of stacked
mixers (Dong et al. 2021; CSP, Theorem 1), and Sinkhorn's matrix, which tends to a permutation (CSP, Theorem 2).

    python examples/theory.py runs/deep-*    # draws depth.png, sinkhorn.png and maps.png in docs/figures

The bounds hold for stacked mixers without skip connections, normalisation and feed-forward networks. Both are on the
residual of :func:`rows_residual`, for inputs without a graph. They leave
the range of float64 within a few layers, so they are returned as base-10 logarithms.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.linalg import block_diag
from torch import Tensor, nn

import graphslice as gs
from graphslice.chem.molecule import MolGraph
from graphslice.explain.attribution import activations, collate_one, implicit_map
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import Mixer
from graphslice.nn.mixers.attention import SoftmaxAttention
from graphslice.runs.checkpoint import Checkpoint


def one_inf_norm(x: np.ndarray) -> float:
    """Compute ``sqrt(|x|_1 |x|_inf)``, the geometric mean of the largest absolute column sum and row sum."""
    size = np.abs(np.asarray(x, np.float64))
    return float(np.sqrt(size.sum(0).max(initial=0) * size.sum(1).max(initial=0)))


def rows_residual(x: np.ndarray) -> float:
    """Compute the residual ``|x - 1 y^T|`` of ``x`` ``[N, C]`` in the (1, inf)-norm, with y the column-wise median.

    It is 0 if all rows are equal. Dong et al. 2021 and CSP, eq. 6, define the residual with the y that minimises the
    norm. The median minimises it in the 1-norm, and is within a factor of 2 of the minimum in the inf-norm, so the
    result is at most sqrt(2) times the minimal residual.
    """
    x = np.asarray(x, np.float64)
    return one_inf_norm(x - np.median(x, axis=0)) if len(x) else 0.0


def rank_one_residual(x: np.ndarray) -> float:
    """Compute :func:`rows_residual` of ``x`` ``[N, C]`` over the norm of ``x``: 0 if equal, near 1 if unrelated."""
    norm = one_inf_norm(x)
    return rows_residual(x) / norm if norm else 0.0


def mixer_stack_outputs(mixers: Sequence[Mixer], x: Tensor, context: AttentionContext | None = None) -> np.ndarray:
    """Compute the outputs of stacked mixers in float64.

    Args:
        mixers: L layers, with their output projections.
        x: input rows ``[N, C]`` of the first layer.
        context: context of the sample; by default one without a graph.

    Returns:
        ``float64 [L + 1, N, C]``: the input, and the output of each layer.
    """
    context = context or AttentionContext(torch.tensor([len(x)], device=x.device), len(x))
    rows = [x.double()[None]]
    with torch.inference_mode():
        for mixer in mixers:
            rows.append(copy.deepcopy(mixer).double().eval()(rows[-1], context))
    return torch.cat(rows).cpu().numpy()


def permutation_bound(mixers: Sequence[Mixer], *, by_layer: bool = False) -> np.ndarray:
    """Compute the upper bound on the residual after permuting mixers, relative to the input's residual.

    The bound is ``C^(L/2) (lambda beta)^L`` (CSP, Theorem 1, eq. 7): beta is the largest ``|W|_1`` of the value maps W,
    and lambda the largest Lipschitz constant of the map after the mixer. Here that is the output projection O, whose
    constant in the (1, inf)-norm is ``sqrt(|O|_1 |O|_inf)``. The proof requires of a mixer that the residual of no
    channel grows, so it holds for every sort, for max-exchange, and for channels that are kept or pooled.

    Args:
        mixers: L layers; each has a ``value`` map and permutes, keeps or pools its channels.
        by_layer: multiply the constants of the individual layers instead of using the largest for all (eq. 17, second
            line).

    Returns:
        ``float64 [L + 1]``: log10 of the bound after 0 to L layers.
    """
    values = _log10([np.linalg.norm(_matrix(mixer.get_submodule("value"), mixer.dim), 1) for mixer in mixers])
    follow = _log10([one_inf_norm(_matrix(mixer.output, mixer.dim)) for mixer in mixers])
    layers = np.arange(1, len(mixers) + 1)
    if by_layer:
        total = np.cumsum(values + follow)
    else:
        total = layers * (np.maximum.accumulate(values) + np.maximum.accumulate(follow))
    return np.concatenate([[0.0], total + layers / 2 * np.log10(mixers[0].dim)])


def attention_bound(mixers: Sequence[SoftmaxAttention], residual: float) -> np.ndarray:
    """Compute the upper bound on the residual after softmax attention.

    The bound is ``(4 beta H / sqrt(d))^((3^L - 1) / 2) |res(X)|^(3^L)`` (Dong et al. 2021, for H heads of d channels):
    beta is the largest ``|W_QK|_1 |W_VO|_(1, inf)`` of a head, W_QK its query times its key map and W_VO its value
    times its part of the output projection. It is below the input's residual only if that is below
    ``(4 beta H / sqrt(d))^(-1/2)``.

    Args:
        mixers: L layers.
        residual: residual of the input rows of the first layer.

    Returns:
        ``float64 [L + 1]``: log10 of the bound after 0 to L layers.
    """
    gains = np.concatenate([[0.0], np.maximum.accumulate(attention_gains(mixers))])
    cubed = 3.0 ** np.arange(len(gains))
    return gains * (cubed - 1) / 2 + cubed * _log10(residual)


def attention_gains(mixers: Sequence[SoftmaxAttention]) -> np.ndarray:
    """Compute log10 of ``4 beta H / sqrt(d)`` of each layer, ``float64 [L]``: see :func:`attention_bound`."""
    gains = []
    for mixer in mixers:
        width = mixer.dim // mixer.heads
        query, key, value, output = (
            _matrix(linear, mixer.dim) for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        parts = [slice(head * width, (head + 1) * width) for head in range(mixer.heads)]
        beta = max(np.linalg.norm(query[:, h] @ key[:, h].T, 1) * one_inf_norm(value[:, h] @ output[h]) for h in parts)
        gains.append(4 * beta * mixer.heads / np.sqrt(width))
    return _log10(gains)


def _matrix(linear: nn.Module, dim: int) -> np.ndarray:
    """Compute W of the affine map ``x W + b``, ``float64 [C, C]``, by applying the module to the identity matrix."""
    eye = torch.eye(dim, dtype=torch.float64)
    with torch.inference_mode():
        affine = copy.deepcopy(linear).cpu().double()
        return (affine(eye) - affine(torch.zeros_like(eye))).numpy()


def _log10(x: float | list[np.floating] | list[float]) -> np.ndarray:
    """Compute log10; -inf for 0, which occurs for zero maps."""
    with np.errstate(divide="ignore"):
        return np.log10(x)


def sinkhorn(scores: Tensor, tau: float | Tensor, iterations: int) -> Tensor:
    """Compute ``Sinkhorn_t(exp(scores / tau))``, which tends to a doubly stochastic matrix with t (CSP, eq. 8).

    Args:
        scores: ``[..., N, N]``.
        tau: temperature, broadcast over ``scores``.
        iterations: t, how often the rows and then the columns are normalised.

    Returns:
        ``[..., N, N]``; its columns sum to 1.
    """
    log = scores / tau
    for _ in range(iterations):
        log = log.log_softmax(-1).log_softmax(-2)
    return log.exp()


def transport(reference: np.ndarray, column: np.ndarray, tau: float, iterations: int, groups: int = 1) -> np.ndarray:
    """Compute the doubly stochastic map of a channel, ``BlkDiag(Sinkhorn_t(exp(v_1 v_c^T / tau)))`` (CSP, eq. 9).

    By Theorem 2 it tends to :func:`group_sort`, with t to infinity and then tau to 0, if that transport is unique.

    Args:
        reference: v_1, ``[N]``.
        column: v_c, ``[N]``, shifted already.
        tau: temperature.
        iterations: t.
        groups: K; the first groups have one row more if K does not divide N.

    Returns:
        ``float64 [N, N]``.
    """
    pairs = zip(np.array_split(reference, groups), np.array_split(column, groups), strict=True)
    scores = [torch.from_numpy(np.outer(first, other)).double() for first, other in pairs]
    return block_diag(*(sinkhorn(block, tau, iterations) for block in scores))


def group_sort(reference: np.ndarray, column: np.ndarray, groups: int = 1) -> np.ndarray:
    """Compute the permutation that brings a channel into the order of the reference within each group, ``float64
    [N, N]``: T_c of CSP, eq. 5, with the arguments of :func:`transport`."""
    blocks = []
    for first, other in zip(np.array_split(reference, groups), np.array_split(column, groups), strict=True):
        block = np.zeros((len(first), len(first)))
        block[np.argsort(first, kind="stable"), np.argsort(other, kind="stable")] = 1
        blocks.append(block)
    return block_diag(*blocks)


# --- figures ----------------------------------------------------------------------------------------

#: Rows whose residual is measured, and how it is drawn.
STACKS = {"the model": "C0.-", "its mixers alone, with the graph": "C1.--", "its mixers alone": "C2.--"}
#: Temperatures over the product of the standard deviations of the channels, and numbers of iterations.
TEMPERATURES, ITERATIONS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), (5, 100, 1_000, 10_000)
# Width and height of a panel in inches.
_PANEL = (4.2, 3.6)


def depth_residuals(predictor: Predictor, graphs: Sequence[MolGraph]) -> tuple[np.ndarray, np.ndarray, float]:
    """Compute for each of STACKS log10 of the residual over that of the rows that enter, ``[3, L + 1]``, -inf where it
    is lost in the rounding, and the last residual over the norm of its rows, ``[3]``: medians over molecules; and the
    median residual of the rows that enter."""
    mixers, logs, shares, enter = [block.mixer for block in predictor.model.blocks], [], [], []
    for graph in graphs:
        rows = activations(predictor, graph).rows
        with torch.inference_mode():
            context = predictor.model.context(collate_one(predictor, graph, None))
        x = torch.from_numpy(rows[0])
        stacks = rows, mixer_stack_outputs(mixers, x, context), mixer_stack_outputs(mixers, x)
        share = np.array([[rank_one_residual(layer) for layer in stack] for stack in stacks])
        residual = np.array([[rows_residual(layer) for layer in stack] for stack in stacks])
        logs.append(np.where(share < 1e-13, -np.inf, _log10(residual / residual[:, :1])))
        shares.append(share[:, -1])
        enter.append(residual[0, 0])
    return np.median(logs, axis=0), np.median(shares, axis=0), float(np.median(enter))


def _panels(rows: int, columns: int) -> tuple[Figure, Sequence[Axes]]:
    """Make a figure of panels; its axes row by row."""
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def draw_depth(predictors: Sequence[Predictor], graphs: Sequence[MolGraph], path: Path) -> None:
    """Draw the residual against depth with the bounds, of random and of trained weights, and print docs/results.md's
    table."""
    figure, axes = _panels(2, len(predictors))
    for column, trained in enumerate(predictors):
        name = trained.config.model.mixer
        torch.manual_seed(trained.config.trainer.seed)
        random = Checkpoint(trained.config, trained.tasks, GraphTransformer(trained.config.model).state_dict())
        for row, (weights, predictor) in enumerate({"initial": Predictor(random, "cpu"), "trained": trained}.items()):
            logs, shares, enters = depth_residuals(predictor, graphs)
            mixers = [block.mixer for block in predictor.model.blocks]
            if name == "softmax":
                bounds = {"bound of Dong et al.": attention_bound(mixers, enters) - np.log10(enters)}
            else:
                bounds = {"bound of CSP, eq. 7": permutation_bound(mixers)}
                bounds["bound of CSP, eq. 17"] = permutation_bound(mixers, by_layer=True)
            axis = axes[row * len(predictors) + column]
            for (label, style), values in zip(STACKS.items(), logs, strict=True):
                axis.plot(values, style, label=label)
            for label, values in bounds.items():
                axis.plot(values, "k:" if "17" in label else "k-", label=label)
            axis.set(xlabel="layers", title=f"{name}, {weights}", ylim=(-18, 42))
            bound, (model, graph, alone) = next(iter(bounds.values())), logs
            logs_shown = [bound[1], bound[-1], alone[1], alone[-1], graph[-1], model[-1]]
            cells = [f"{round(value, 1) + 0:.8g}" if value > -np.inf else "lost" for value in logs_shown]
            for place, share in zip((4, 6, 8), shares[::-1], strict=True):
                cells.insert(place, f"{share:.2g}" if share > 1e-13 else "0")
            print(f"| `{name}` | {weights} | {' | '.join(cells)} |")
    for axis in axes[: len(predictors)]:
        axis.legend(fontsize=7)
    axes[0].set_ylabel("log10 of the residual")
    figure.savefig(path, dpi=120)


def channel_values(predictor: Predictor, graph: MolGraph, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute P V of a layer of pre-norm blocks, and what the mixer makes of it, ``[N + 1, C]`` each."""
    inside, block = activations(predictor, graph), predictor.model.blocks[layer]
    with torch.inference_mode():
        context = predictor.model.context(collate_one(predictor, graph, None))
        x = block.mixer_norm(torch.from_numpy(inside.rows[layer])[None])
        values = context.aggregate(block.mixer.get_submodule("value")(x))[0]
    return values.double().numpy(), inside.mixed[layer]


def sinkhorn_errors(predictor: Predictor, graphs: Sequence[MolGraph]) -> np.ndarray:
    """Compute how far Sinkhorn's matrix times a channel is from the output of a trained ``csp``, over the norm of the
    centred channel: ``[iterations, temperatures]``, medians over channels, each molecule in another layer."""
    errors = []
    for i, graph in enumerate(graphs):
        values, mixed = channel_values(predictor, graph, i % len(predictor.model.blocks))
        channels = np.random.default_rng(i).choice(np.arange(1, values.shape[1]), 4, replace=False)
        columns = torch.from_numpy(values[:, channels].T)
        scores = torch.from_numpy(values[:, 0])[:, None] * columns[:, None, :]
        units = np.std(values[:, 0]) * columns.std(dim=1, correction=0)
        tau = (torch.tensor(TEMPERATURES)[:, None] * units)[..., None, None]
        found = []
        for iterations in ITERATIONS:
            output = (sinkhorn(scores, tau, iterations) @ columns[..., None])[..., 0]
            differences = (output - torch.from_numpy(mixed[:, channels].T)).norm(dim=2)
            found.append(differences / (columns - columns.mean(dim=1, keepdim=True)).norm(dim=1))
        errors.append(torch.stack(found))
    return torch.cat(errors, dim=2).median(dim=2).values.numpy()


def draw_sinkhorn(predictor: Predictor, graphs: Sequence[MolGraph], path: Path) -> None:
    """Draw Sinkhorn's matrix of a channel of a trained ``csp``, of a molecule whose transport is unique, and the errors
    of :func:`sinkhorn_errors`; print these, and how many molecules have a unique transport."""
    figure, axes = _panels(1, 4)
    firsts = [channel_values(predictor, graph, 0)[0] for graph in graphs]
    unique = [v for v in firsts if np.diff(np.sort(v[:, 0])).min() > 1e-6 * v[:, 0].std()]
    print(f"{len(unique)} of {len(graphs)} molecules have no equal values in the first channel of the first layer")
    reference, column = unique[0][:, 0], unique[0][:, 5]
    for axis, tau in zip(axes, (1.0, 0.1, 0.001), strict=False):
        axis.imshow(transport(reference, column, tau * reference.std() * column.std(), 10_000), cmap="Greys", vmax=1)
        axis.set(title=f"temperature {tau:g}", xlabel="row of the channel", ylabel="row of the output")
    errors = sinkhorn_errors(predictor, graphs[:20])
    for iterations, line in zip(ITERATIONS, errors, strict=True):
        print(f"| {iterations:,} | {' | '.join(f'{error:.2f}' for error in line)} |")
        axes[3].loglog(TEMPERATURES, line, ".-", label=f"{iterations:,} iterations")
    axes[3].legend(fontsize=7)
    axes[3].set(xlabel="temperature", title="error of the output", ylim=(5e-3, 20))
    figure.savefig(path, dpi=120)


def draw_maps(predictors: Sequence[Predictor], path: Path) -> None:
    """Draw the implicit maps of a channel of paracetamol in the first layer, and print their rank and column sums."""
    graph = gs.smiles_to_graph("CC(=O)Nc1ccc(O)cc1")
    of = {predictor.config.model.mixer: predictor for predictor in predictors}
    maps = {"slice-ascend, of P V": implicit_map(of["slice-ascend"], graph, 0, 0)}
    maps["slice-ascend, of V"] = implicit_map(of["slice-ascend"], graph, 0, 0, from_values=True)
    maps["csp, of P V"] = implicit_map(of["csp"], graph, 0, 5)
    maps["softmax, of V"] = implicit_map(of["softmax"], graph, 0, 0)
    figure, axes = _panels(1, len(maps))
    for axis, (name, found) in zip(axes, maps.items(), strict=True):
        axis.imshow(found.toarray(), cmap="Greys", vmin=0, vmax=1)
        axis.set(title=name, xlabel="row of the channel", ylabel="row of the output")
        rank, least = np.linalg.matrix_rank(found.toarray()), np.linalg.svd(found.toarray(), compute_uv=False)[-1]
        sums = f"{found.sum(axis=0).min():.2f} to {found.sum(axis=0).max():.2f}"
        print(f"| {name} | {found.nnz} | {rank} | {least:.2g} | {sums} |")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of softmax, csp, slice-ascend and others")
    parser.add_argument("--molecules", type=int, default=100, help="of the demo set, with 19 to 40 atoms")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args(arguments)
    smiles = pd.read_csv(Path(__file__).parents[1] / "data" / "demo.csv")["smiles"]
    graphs = (graph for graph in map(gs.smiles_to_graph, smiles) if 19 <= graph.num_atoms <= 40)
    chosen, predictors = list(islice(graphs, options.molecules)), [gs.load(run, "cpu") for run in options.runs]
    draw_depth(predictors, chosen, options.out / "depth.png")
    draw_sinkhorn(next(p for p in predictors if p.config.model.mixer == "csp"), chosen, options.out / "sinkhorn.png")
    draw_maps(predictors, options.out / "maps.png")


if __name__ == "__main__":
    main()
