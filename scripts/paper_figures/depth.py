"""CSP, Theorem 1, and Dong et al. 2021: residual of the rows over depth, with the proved bounds.

For each run folder, with random weights of its configuration and with the trained ones: the residual of the rows in
the model, of the stack of its mixers alone (no skips, norms and feed-forward networks) with and without the map of the
graph, all over that of the rows that enter; and the bound.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import graphslice as gs
from graphslice.chem.molecule import MolGraph
from graphslice.data.batch_loader import collate
from graphslice.evaluation.plots import new_figure
from graphslice.explain.attribution import activations
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint
from paper_figures.panels import PANEL, demo_molecules
from theory import (
    attention_bound,
    attention_gains,
    mixer_stack_outputs,
    permutation_bound,
    rank_one_residual,
    rows_residual,
)

#: Mixers whose channels are permuted, kept or pooled where there is no graph: those of Theorem 1.
PERMUTING = ("csp", "slice-ascend", "slice-interleave", "slice-max", "slice-quantile", "map-only")
#: What is measured, and how it is drawn.
MEASURED = {"the model": "C0.-", "its mixers alone, with the graph": "C1.--", "its mixers alone": "C2.--"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; each is named by its mixer")
    parser.add_argument("--molecules", type=int, default=100)


def draw(options: argparse.Namespace) -> None:
    graphs = demo_molecules(options.molecules)
    figure, axes = new_figure(2 * len(options.runs), PANEL, len(options.runs))
    print(f"{len(graphs)} molecules of the demo set, medians; residuals over that of the rows that enter\n")
    print("| mixer | weights | residual of | its log10 after 1, 2, ... layers | share of the norm after the last |")
    print("|---|---|---|---|---|")
    notes: list[str] = []
    for column, folder in enumerate(options.runs):
        trained = gs.load(folder, "cpu")
        name = trained.config.model.mixer
        for row, (weights, predictor) in enumerate({"initial": _untrained(trained), "trained": trained}.items()):
            found, shares, enters = depth_residuals(predictor, graphs)
            axis = axes[row * len(options.runs) + column]
            for what, values in found.items():
                axis.plot(values, MEASURED[what], label=what)
                print(_line(name, weights, what, values, shares[what]))
            for what, values in bounds(predictor, enters).items():
                axis.plot(values, "k:" if "eq. 17" in what else "k-", label=what)
                print(_line(name, weights, what, values))
            if name == "softmax":
                notes += [f"{weights}: {enters:.3g} enters; the bound falls below {least_residual(predictor):.2g}"]
            axis.set(xlabel="layers", title=f"{name}, {weights}", ylim=(-18, 42))
    print("".join(f"\nResidual of softmax, {note}." for note in notes))
    for axis in axes[: len(options.runs)]:
        axis.legend(fontsize=7)
    for axis in axes[:: len(options.runs)]:
        axis.set_ylabel("log10 of the residual")
    figure.savefig(options.out / "depth.png", dpi=120)


def depth_residuals(
    predictor: Predictor, graphs: list[MolGraph]
) -> tuple[dict[str, np.ndarray], dict[str, float], float]:
    """Of each of MEASURED log10 of the residual over the first, ``float64 [L + 1]``, and the last over the norm of its
    rows, medians over molecules; and the first residual itself.

    -inf where it is lost in the rounding.
    """
    logs: dict[str, list[np.ndarray]] = {what: [] for what in MEASURED}
    shares: dict[str, list[float]] = {what: [] for what in MEASURED}
    mixers = [block.mixer for block in predictor.model.blocks]
    for graph in graphs:
        rows = activations(predictor, graph).rows
        with torch.inference_mode():
            context = predictor.model.context(collate([graph], **predictor.config.collate_settings))
        x = torch.from_numpy(rows[0])
        stacks = (rows, mixer_stack_outputs(mixers, x, context), mixer_stack_outputs(mixers, x))
        for what, stack in zip(MEASURED, stacks, strict=True):
            lost = [rank_one_residual(layer) < 1e-13 for layer in stack]
            logs[what].append(np.where(lost, -np.inf, np.log10([rows_residual(layer) or 1 for layer in stack])))
            shares[what].append(rank_one_residual(stack[-1]))
    found = {what: np.median([values - values[0] for values in several], axis=0) for what, several in logs.items()}
    enters = float(10 ** np.median([values[0] for values in logs["the model"]]))
    return found, {what: float(np.median(values)) for what, values in shares.items()}, enters


def bounds(predictor: Predictor, enters: float) -> dict[str, np.ndarray]:
    """log10 of what is proved of the mixers alone, over the residual ``enters`` of the rows that enter."""
    mixers, name = [block.mixer for block in predictor.model.blocks], predictor.config.model.mixer
    if name == "softmax":
        return {"bound of Dong et al.": attention_bound(mixers, enters) - np.log10(enters)}
    if name not in PERMUTING:
        return {}
    sharper = permutation_bound(mixers, by_layer=True)
    return {"bound of CSP, eq. 7": permutation_bound(mixers), "bound of CSP, eq. 17": sharper}


def least_residual(predictor: Predictor) -> float:
    """Below which residual of the rows that enter the bound of attention falls with depth."""
    return float(10 ** (-attention_gains([block.mixer for block in predictor.model.blocks]).max() / 2))


def _untrained(predictor: Predictor) -> Predictor:
    torch.manual_seed(predictor.config.trainer.seed)
    weights = GraphTransformer(predictor.config.model).state_dict()
    return Predictor(Checkpoint(predictor.config, predictor.tasks, weights), "cpu")


def _line(name: str, weights: str, what: str, values: np.ndarray, share: float | None = None) -> str:
    logs = ["lost" if np.isinf(v) else f"{round(v, 1) + 0.0}" if v < 1000 else f"{v:.2g}" for v in values[1:]]
    return f"| `{name}` | {weights} | {what} | {' '.join(logs)} | {'' if share is None else f'{share:.2g}'} |"
