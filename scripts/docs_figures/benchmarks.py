"""Pictures of measured results."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import rate
from benchmarks.results import RESULTS, read_results
from benchmarks.table_tasks import METRICS, TDC, Task
from benchmarks.tables import BOARDS, comparable, grouped, mean, places, recorded
from graphslice.evaluation.plots import COLOURS

#: Our models, and their names in pictures.
OURS = {
    "graphslice": "GraphSlice: network and base models",
    "graphslice-network": "its network, fine-tuned",
    "scratch-network": "its network, from scratch",
}
# Colour and label of each split.
_SPLITS = {"random": ("c1", "random split"), "scaffold": ("c2", "scaffold split")}
# Published methods with which the default is compared task by task, and their colours.
_RIVALS = {"maplight_gnn": "c2", "chemprop_rdkit": "c3"}


def mean_ranks() -> dict[str, float]:
    """Return the mean rank of each of our models among the published methods, and of these next to the default."""
    lines, board = recorded()
    scores = comparable(grouped(lines, "test"), board)
    published = places("graphslice", scores).mean()
    ours = {title: float(places(name, scores)[f"`{name}`"].mean()) for name, title in OURS.items()}
    return ours | {title: float(published[name]) for name, title in BOARDS.items()}


def coverages() -> dict[str, dict[int, list[float]]]:
    """Return the measured coverages of all tables and seeds, by split and nominal level in percent."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in read_results(RESULTS / "intervals.jsonl"):
        for level, values in line["intervals"].items():
            found[line["split"]][int(level)].append(100 * values["coverage"])
    return found


def error(task: Task, score: float) -> float:
    """Return the error of a score: an absolute error, or what is missing to 1."""
    return 1 - score if METRICS[task.metrics[0]][1] else score


def draw_ranks(axes: Axes) -> None:
    """Draw a dot for each method, the best on top."""
    ranks = dict(sorted(mean_ranks().items(), key=lambda item: -item[1]))
    for place, (name, rank) in enumerate(ranks.items()):
        colour = COLOURS["c1"] if name in OURS.values() else COLOURS["soft"]
        axes.plot((1, rank), (place, place), color=colour, linewidth=1, alpha=0.35)
        axes.plot(rank, place, "o", color=colour)
        axes.annotate(f"{rank:.1f}", (rank, place), (8, 0), textcoords="offset points", va="center", color=colour)
    axes.set_yticks(range(len(ranks)), ranks, color=COLOURS["ink"])
    axes.set(xlim=(1, 8.9), xlabel="mean rank on TDC's ADMET group (1 is best)")
    axes.grid(axis="y", visible=False)


def draw_coverage(axes: Axes) -> None:
    """Draw a dot for each table and seed, and their mean, for every nominal coverage."""
    axes.plot((75, 100), (75, 100), color=COLOURS["soft"], linewidth=1, linestyle=":")
    for shift, (split, levels) in zip((-0.5, 0.5), sorted(coverages().items()), strict=True):
        colour, label = COLOURS[_SPLITS[split][0]], _SPLITS[split][1]
        for level, values in levels.items():
            axes.plot([level + shift] * len(values), values, "o", color=colour, markersize=3, alpha=0.35)
            axes.plot(level + shift, np.mean(values), "_", color=colour, markersize=16, markeredgewidth=2.5)
        axes.plot([], [], "_", color=colour, markersize=12, markeredgewidth=2.5, label=f"{label}, mean")
    axes.set(xlabel="nominal coverage, %", ylabel="measured coverage, %", xticks=sorted(levels), xlim=(76, 99))
    axes.legend(loc="lower right")


def draw_differences(axes: Axes) -> None:
    """Draw by how much the default's error is below that of two published methods, task by task."""
    lines, board = recorded()
    scores = grouped(lines, "test")
    tasks = [TDC[name] for name in board["maplight_gnn"].dropna().index]
    axes.axvline(0, color=COLOURS["soft"], linewidth=1)
    for shift, (rival, colour) in zip((0.14, -0.14), _RIVALS.items(), strict=True):
        theirs = board[rival].dropna()
        for place, task in enumerate(reversed(tasks)):
            if task.name not in theirs:
                continue
            values = scores[task.name, task.metrics[0]]["graphslice"].values()
            ours = np.array([error(task, score) for score in values])
            gains = 100 * (1 - ours / error(task, theirs[task.name]))
            axes.errorbar(
                gains.mean(), place + shift, xerr=gains.std(ddof=1), fmt="o", color=COLOURS[colour], markersize=4.5
            )
        axes.errorbar([], [], xerr=[], fmt="o", color=COLOURS[colour], label=f"compared with {BOARDS[rival]}")
    labels = [f"{task.name} ({task.metrics[0]})" for task in reversed(tasks)]
    axes.set_yticks(range(len(tasks)), labels, color=COLOURS["ink"])
    axes.set(xlabel="error below that of the published method, %")
    axes.figure.legend(loc="outside upper center", ncols=2)


def draw_gains(axes: Axes) -> None:
    """Draw the errors of the network from scratch, fine-tuned, and averaged with the base models, task by task."""
    scores = grouped(recorded()[0], "test")
    shades = dict(zip(reversed(OURS), ("soft", "c2", "c1"), strict=True))
    tasks = [task for task in TDC.values() if "scratch-network" in scores[task.name, task.metrics[0]]]
    for place, task in enumerate(reversed(tasks)):
        found = scores[task.name, task.metrics[0]]
        errors = {name: error(task, mean(found[name])) for name in shades}
        relative = {name: 100 * value / errors["scratch-network"] for name, value in errors.items()}
        axes.plot(list(relative.values()), [place] * 3, color=COLOURS["grid"], linewidth=3, zorder=1)
        for name, value in relative.items():
            axes.plot(value, place, "o", color=COLOURS[shades[name]], zorder=2)
    labels = ("network from scratch", "network fine-tuned", "with base models")
    for colour, label in zip(shades.values(), labels, strict=True):
        axes.plot([], [], "o", color=COLOURS[colour], label=label)
    labels = [f"{task.name} ({task.metrics[0]})" for task in reversed(tasks)]
    axes.set_yticks(range(len(tasks)), labels, color=COLOURS["ink"])
    axes.set(xlabel="test error, % of that of the network from scratch")
    axes.figure.legend(loc="outside upper center", ncols=3, columnspacing=1, handletextpad=0.2)


def draw_rates(axes: Axes) -> None:
    """Draw the processor time of a molecule, for each model of the benchmark of rates."""
    found = rate.microseconds(read_results(RESULTS / "rate.jsonl"))
    for place, (model, values) in enumerate(reversed(found.items())):
        colour = COLOURS["soft" if model == "chemprop" else "c1"]
        axes.barh(place, np.mean(values), 0.62, color=colour)
        text = f"{np.mean(values):,.0f}"
        if model != "chemprop":
            text += f"   {np.mean(np.array(found['chemprop']) / np.array(values)):.1f}x chemprop's rate"
        axes.annotate(text, (np.mean(values), place), (6, 0), textcoords="offset points", va="center", color=colour)
    names = ["\n".join(rate.MODELS[name].split(": ")) for name in reversed(found)]
    axes.set_yticks(range(len(found)), names, color=COLOURS["ink"])
    axes.set(xlabel="processor time, microseconds a molecule", xlim=(0, 1.12 * max(map(np.mean, found.values()))))
    axes.grid(axis="y", visible=False)


#: Size in inches and function of each picture.
PICTURES = {
    "ranks": ((7, 3.6), draw_ranks),
    "coverage": ((5.2, 3.6), draw_coverage),
    "differences": ((7, 6.2), draw_differences),
    "pretraining": ((7, 5.4), draw_gains),
    "speed": ((7, 2.4), draw_rates),
}


def draw(name: str) -> Figure:
    """Draw one of :data:`PICTURES`."""
    size, function = PICTURES[name]
    figure = Figure(figsize=size, layout="constrained")
    function(figure.add_subplot())
    return figure
