"""Plots of predictions against true values."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphslice.tasks import Task, output_slices

# Maximum number of panels; maximum characters of a target's name in a title, and of a line.
_MAX_PANELS, _NAME, _LINE = 12, 64, 44


def plot_predicted_vs_true(path: Path, tasks: Sequence[Task], true: np.ndarray, predictions: np.ndarray) -> None:
    """Plot predicted against true values, one panel for each of the first twelve targets.

    Regression targets are shown as a scatter plot, binary ones as a ROC curve, multiclass ones as a confusion matrix,
    each with the number of labels and its scores.

    Args:
        path: path of the PNG file.
        tasks: T targets.
        true: ``float64 [R, T]``, labels or class indices; nan where missing.
        predictions: ``float32 [R, W]``.
    """
    from graphslice.evaluation import plots

    shown, slices = tasks[:_MAX_PANELS], output_slices(tasks)
    with plots.report_style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font lacks
        figure, panels = plots.new_figure(len(shown), plots.SQUARE)
        for t, (axes, task) in enumerate(zip(panels, shown, strict=True)):
            known = ~np.isnan(true[:, t])
            y, predicted = true[known, t], predictions[known, slices[t]]
            name = "\n".join(textwrap.wrap(plots.shortened(task.name, _NAME), _LINE))
            axes.set_title(f"{name}\n{plots.score_caption(task, y, predicted)}")
            if len(y):
                plots.draw_predictions(axes, task, y, predicted)
        if (more := len(tasks) - len(shown)) > 0:
            figure.supxlabel(f"and {more:,} more targets: see metrics.json")
        figure.savefig(path, dpi=82)
