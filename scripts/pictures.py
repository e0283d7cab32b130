"""Draw the pictures of the documentation from the files of results: ``python scripts/pictures.py``.

``ranks.svg``: mean ranks on TDC's ADMET group. ``coverage.svg``: nominal and measured coverage of prediction intervals.
``zinc.png`` and ``zinc-time.png``: comparisons of mixers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.table_report import BOARDS, PUBLISHED, grouped, places, read_results
from graphslice.compare.report import draw as draw_comparison
from graphslice.evaluation.plots import COLOURS, report_style

BENCHMARKS = Path(__file__).parents[1] / "docs" / "benchmarks"
FIGURES = BENCHMARKS.parent / "figures"
COMPARISONS = ("zinc", "zinc-time")
#: Our models, and their names in the picture.
OURS = {
    "graphslice": "GraphSlice: network and base models",
    "graphslice-network": "its network, fine-tuned",
    "scratch-network": "its network, from scratch",
}
# Colour and label of each split.
_SPLITS = {"random": ("c1", "random split"), "scaffold": ("c2", "scaffold split")}


def mean_ranks() -> dict[str, float]:
    """The mean rank of each of our models among the published methods, and of these next to the default."""
    scores = grouped(read_results(BENCHMARKS / "results.jsonl"), "test")
    board = pd.read_csv(BENCHMARKS / PUBLISHED, index_col="task")
    published = places("graphslice", scores, board)[list(BOARDS)].mean()
    ours = {title: float(places(name, scores, board)[name].mean()) for name, title in OURS.items()}
    return ours | {title: float(published[name]) for name, title in BOARDS.items()}


def coverages() -> dict[str, dict[int, list[float]]]:
    """The measured coverages of all tables and seeds, by split and nominal level in percent."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in read_results(BENCHMARKS / "intervals.jsonl"):
        for level, values in line["intervals"].items():
            found[line["split"]][int(level)].append(100 * values["coverage"])
    return found


def draw_ranks() -> Figure:
    """A dot for each method, the best on top."""
    ranks = dict(sorted(mean_ranks().items(), key=lambda item: -item[1]))
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for place, (name, rank) in enumerate(ranks.items()):
        colour = COLOURS["c1"] if name in OURS.values() else COLOURS["soft"]
        axes.plot(rank, place, "o", color=colour)
        axes.annotate(f"{rank:.1f}", (rank, place), (9, 0), textcoords="offset points", va="center", color=colour)
    axes.set_yticks(range(len(ranks)), ranks, color=COLOURS["ink"])
    axes.set(xlim=(1, 9), xlabel="mean rank on TDC's ADMET group (1 is best)")
    return figure


def draw_coverage() -> Figure:
    """A dot for each table and seed, and their mean, for every nominal coverage."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.plot((75, 100), (75, 100), color=COLOURS["soft"], linewidth=1, linestyle=":")
    for shift, (split, levels) in zip((-0.5, 0.5), sorted(coverages().items()), strict=True):
        colour, label = COLOURS[_SPLITS[split][0]], _SPLITS[split][1]
        for level, values in levels.items():
            axes.plot([level + shift] * len(values), values, "o", color=colour, markersize=3, alpha=0.35)
            axes.plot(level + shift, np.mean(values), "_", color=colour, markersize=16, markeredgewidth=2.5)
        axes.plot([], [], "_", color=colour, markersize=12, markeredgewidth=2.5, label=f"{label}, mean")
    axes.set(xlabel="nominal coverage, %", ylabel="measured coverage, %", xticks=sorted(levels), xlim=(76, 99))
    axes.legend(loc="lower right", frameon=False, fontsize=10)
    return figure


def main() -> None:
    with report_style(), matplotlib.rc_context({"svg.fonttype": "path"}):
        for name, draw in (("ranks", draw_ranks), ("coverage", draw_coverage)):
            draw().savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    for name in COMPARISONS:
        result = json.loads((BENCHMARKS.parent / "comparisons" / f"{name}.json").read_text(encoding="utf-8"))
        draw_comparison(result, FIGURES / f"{name}.png")


if __name__ == "__main__":
    main()
