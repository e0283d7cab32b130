"""Sliceformer, Fig. 4, and CSP, Fig. 3: singular values of what the mixers of trained models put out."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import graphslice as gs
from graphslice.evaluation.plots import new_figure
from graphslice.explain.attribution import activations
from paper_figures.panels import demo_molecules
from theory import rank_one_residual, singular_spectrum


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; each is named by its mixer")
    parser.add_argument("--molecules", type=int, default=100)


def draw(options: argparse.Namespace) -> None:
    """Mean over molecules of 20 rows or more: each singular value over the largest, and the effective rank."""
    graphs = demo_molecules(options.molecules)
    figure, axes = new_figure(2, (5, 3.6))
    print(f"{len(graphs)} molecules of the demo set, 20 to 41 rows\n")
    print("| run | effective rank of the mixer's output, by layer | residual of the rows, by depth |\n|---|---|---|")
    for folder in options.runs:
        predictor = gs.load(folder, "cpu")
        name = predictor.config.model.mixer
        spectra, ranks, residuals = [], [], []
        for graph in graphs:
            seen = activations(predictor, graph)
            layers = [singular_spectrum(mixed) for mixed in seen.mixed]
            shares = [values / values.sum() for values in layers]
            ranks.append([np.exp(-(s[s > 0] * np.log(s[s > 0])).sum()) for s in shares])
            spectra.append([values[:20] / values[0] for values in layers])
            residuals.append([rank_one_residual(rows) for rows in seen.rows])
        mean = np.exp(np.log(np.maximum(spectra, 1e-6)).mean(axis=(0, 1)))
        axes[0].plot(range(1, 21), mean, marker=".", label=name)
        axes[1].plot(np.mean(residuals, axis=0), marker=".", label=name)
        by_layer = " ".join(f"{rank:.1f}" for rank in np.mean(ranks, axis=0))
        print(f"| `{name}` | {by_layer} | {' '.join(f'{r:.2f}' for r in np.mean(residuals, axis=0))} |")
    print("\nThe papers draw the spectra of sorts decaying far more slowly than attention's (CIFAR-10, ImageNet-1k).")
    axes[0].set(yscale="log", xlabel="singular value", ylabel="share of the largest, mean over layers")
    axes[1].set(xlabel="blocks passed", ylabel="rank-1 residual", ylim=(0, None))
    axes[0].legend(fontsize=7)
    figure.savefig(options.out / "spectra.png", dpi=120)
