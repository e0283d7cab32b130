"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Panels of a picture.
_MOST = 12


def draw_predicted_against_true(path: Path, names: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> None:
    """One panel a target, of the first twelve.

    Args:
        path: of the PNG file.
        names: T names of targets.
        true: ``float64 [R, T]``, nan where unknown.
        predicted: ``float32 [R, T]``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = names[:_MOST]
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 4 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for t, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, t + 1)
        axes.scatter(true[:, t], predicted[:, t], s=6, alpha=0.5, linewidths=0)
        known = true[~np.isnan(true[:, t]), t]
        if len(known):
            ends = [known.min(), known.max()]
            axes.plot(ends, ends, color="black", linewidth=0.8)
        axes.set_xlabel(f"{name}, true")
        axes.set_ylabel(f"{name}, predicted")
    figure.savefig(path, dpi=120)
