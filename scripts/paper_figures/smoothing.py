"""Sliceformer, Fig. 2: the elements of a softmax become alike as there are more of them."""

from __future__ import annotations

import argparse

import numpy as np
import torch

from graphslice.evaluation.plots import new_figure
from paper_figures.panels import PANEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=100)


def draw(options: argparse.Namespace) -> None:
    """The deviation of the elements of ``Softmax(x)``, x standard normal, and of a sort of x."""
    generator = torch.Generator().manual_seed(0)
    sizes = [10**k for k in range(1, 7)]
    found, theory = [], np.sqrt(np.e - 1)  # of exp(x) over its mean: sqrt(e^2 - e) / sqrt(e)
    print("| N | std of Softmax(x) | times N | theory, sqrt(e - 1) | std of Sort(x) |\n|---|---|---|---|---|")
    for size in sizes:
        deviations, kept = [], []
        for _ in range(options.trials):
            x = torch.randn(size, generator=generator, dtype=torch.float64)
            deviations.append(torch.softmax(x, 0).std().item())
            kept.append(x.sort().values.std().item())
        found.append((np.mean(deviations), np.std(deviations), np.mean(kept)))
        mean = found[-1][0]
        print(f"| {size:,} | {mean:.3g} | {mean * size:.3f} | {theory:.3f} | {found[-1][2]:.3f} |")
    print("\nThe paper draws it from 1e-1 at N = 10 down to 1e-6 at N = 1,000,000.")
    figure, (axes,) = new_figure(1, PANEL)
    means, spreads, sorts = np.array(found).T
    axes.errorbar(sizes, means, spreads, marker=".", label="softmax")
    axes.plot(sizes, sorts, marker=".", label="sort")
    axes.plot(sizes, theory / np.array(sizes), ":", color="grey", label="sqrt(e - 1) / N")
    axes.set(xscale="log", yscale="log", xlabel="N", ylabel="standard deviation of the elements")
    axes.legend()
    figure.savefig(options.out / "smoothing.png", dpi=120)
