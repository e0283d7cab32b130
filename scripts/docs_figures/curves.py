"""The validation metric of a comparison against training time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps

from graphslice.evaluation.plots import new_figure, use_log_scale
from graphslice.search.compare import group_by_variant, metric_of


def align(curves: Sequence[np.ndarray], by: int) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves ``[n, 3]`` of seconds, steps and errors at common seconds (``by`` 0) or steps (1).

    Returns the seconds, averaged over the seeds, and ``[S, P]`` errors, over the range that all curves cover; the last
    point of each curve if there is no common range.
    """
    first, last = max(curve[0, by] for curve in curves), min(curve[-1, by] for curve in curves)
    if first >= last:
        ends = np.stack([curve[-1] for curve in curves])
        return ends[:, :1].mean(0), ends[:, 2:]
    grid = np.linspace(first, last, 200)
    aligned = [[np.interp(grid, curve[:, by], curve[:, column]) for column in (0, 2)] for curve in curves]
    return np.mean([seconds for seconds, _ in aligned], axis=0), np.stack([errors for _, errors in aligned])


def draw(result: dict, path: Path) -> None:
    """Plot the contents of ``comparison.json``: the mean over the seeds as a line, their range shaded."""
    variants, metric = group_by_variant(result), metric_of(result)
    figure, (axes,) = new_figure(1, (8, 5))
    colours = colormaps["tab10" if len(variants) <= 10 else "tab20"]
    for number, (label, runs) in enumerate(variants.items()):
        curves = [np.array(run["curve"]) for run in runs]
        times, errors = align(curves, 0 if re.search(r"\d\s*[smh]$", result["budget"]) else 1)
        axes.plot(times, errors.mean(0), color=colours(number), label=label, linewidth=1.4)
        axes.fill_between(times, errors.min(0), errors.max(0), color=colours(number), alpha=0.15, linewidth=0)
    axes.set(xlabel="training time (s)", ylabel=f"validation {metric.label}")
    points = [error for runs in variants.values() for run in runs for *_, error in run["curve"]]
    use_log_scale(axes, "y", np.array(points))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
