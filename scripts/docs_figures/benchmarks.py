"""Pictures of measured results."""

import json
from collections import defaultdict

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import adme, rate
from benchmarks.results import RESULTS, read_results
from benchmarks.table_tasks import METRICS, TDC, Task
from benchmarks.tables import BOARDS, comparable, grouped, mean, places, recorded
from graphslice.report.figures import COLOURS

#: Our models, and their names in pictures.
OURS = {
    "graphslice": "GraphSlice: network and base models",
    "graphslice-network": "its network, fine-tuned",
    "scratch-network": "its network, from scratch",
}
# Colour and label of each split.
_SPLITS = {"random": ("c1", "random split"), "scaffold": ("c2", "scaffold split")}
# Comparisons of mixers, their titles and colours.
_COMPARISONS = (("demo", "demo set, gap", "c1"), ("qm9", "QM9, gap by B3LYP", "c2"))
# Models of the demo set, and their names in the picture.
_DEMO_MODELS = {
    "`graphslice train`, which starts from `small`": "GraphSlice, fine-tuned",
    "`graphslice train --init-from none`": "GraphSlice, from scratch",
    "chemprop 2.3.1, absolute error": "chemprop, absolute error",
    "chemprop 2.3.1, squared error (its default)": "chemprop, squared error",
    "random forest on Morgan fingerprints": "random forest, Morgan",
}
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
    for place, (model, value) in enumerate(reversed(found.items())):
        colour = COLOURS["soft" if model in rate.RIVALS else "c1"]
        axes.barh(place, value, 0.62, color=colour)
        slow, fast = (f"{found[rival] / value:.1f}x" for rival in rate.RIVALS)
        text = f"{value:,.0f}" if model in rate.RIVALS else f"{value:,.0f}   {slow} and {fast} their rates"
        axes.annotate(text, (value, place), (6, 0), textcoords="offset points", va="center", color=colour)
    names = [rate.MODELS[name].replace("`", "").replace(": ", "\n").replace(" with ", "\n") for name in reversed(found)]
    axes.set_yticks(range(len(found)), names, color=COLOURS["ink"])
    axes.set(xlabel="processor time, microseconds a molecule", xlim=(0, 1.12 * max(found.values())))
    axes.grid(axis="y", visible=False)


def draw_adme(axes: Axes) -> None:
    """Draw the cross-validated scores of the endpoints of ``adme``: each fold, and their mean."""
    endpoints = pd.read_csv(adme.ENDPOINTS, keep_default_na=False)
    folds = adme.fold_lines(read_results(RESULTS / "adme.jsonl"))
    for place, (name, kind) in enumerate(zip(endpoints["name"][::-1], endpoints["kind"][::-1], strict=True)):
        metric, colour = ("auroc", COLOURS["c1"]) if kind == "binary" else ("spearman", COLOURS["c2"])
        scores = [line["stack"][metric] for line in folds[name]]
        axes.plot(scores, [place] * len(scores), "o", color=colour, markersize=3, alpha=0.35)
        axes.plot(np.mean(scores), place, "|", color=colour, markersize=9, markeredgewidth=2.5)
    for label, colour in (("AUROC", "c1"), ("Spearman", "c2")):
        axes.plot([], [], "|", color=COLOURS[colour], markersize=9, markeredgewidth=2.5, label=label)
    axes.set_yticks(range(len(endpoints)), endpoints["name"][::-1], color=COLOURS["ink"])
    axes.set(xlabel="score on held-out folds: each fold, and their mean", ylim=(-0.8, len(endpoints) - 0.2))
    axes.figure.legend(loc="outside upper center", ncols=2)


def draw_mixers(axes: Axes) -> None:
    """Draw the test errors of the mixers after six epochs, relative to that of ``slice-quantile``."""
    for shift, (name, title, colour) in zip((0.14, -0.14), _COMPARISONS, strict=True):
        runs = json.loads((RESULTS.parent / "comparisons" / f"{name}.json").read_text(encoding="utf-8"))["runs"]
        errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in runs:
            if "bond_messages" not in run["variant"]:
                errors[run["variant"].split()[0].split(":")[0]][run["variant"]].append(run["test"])
        best = {mixer: min(map(np.mean, variants.values())) for mixer, variants in errors.items()}
        if shift > 0:
            order = sorted(best, key=best.__getitem__, reverse=True)
        places = [order.index(mixer) + shift for mixer in best]
        relative = [100 * error / best["slice-quantile"] for error in best.values()]
        axes.plot(relative, places, "o", color=COLOURS[colour], label=title)
    axes.axvline(100, color=COLOURS["soft"], linewidth=1)
    axes.set_yticks(range(len(order)), order, color=COLOURS["ink"])
    axes.set(xlabel="test error, % of that of slice-quantile")
    axes.legend(loc="upper right")


def draw_demo(axes: Axes) -> None:
    """Draw the test errors on the demo set, the smallest on top."""
    errors = defaultdict(list)
    for line in read_results(RESULTS.parent / "results" / "demo.jsonl"):
        errors[_DEMO_MODELS[line["model"]]].append(line["test"]["mae"])
    means = dict(sorted(((name, np.mean(values)) for name, values in errors.items()), key=lambda item: -item[1]))
    for place, (name, error) in enumerate(means.items()):
        colour = COLOURS["c1" if name.startswith("GraphSlice") else "soft"]
        axes.barh(place, error, 0.62, color=colour)
        axes.annotate(
            f"{error:.3f}", (error, place), (6, 0), textcoords="offset points", va="center", color=COLOURS["ink"]
        )
    axes.set_yticks(range(len(means)), means, color=COLOURS["ink"])
    axes.set(xlabel="test MAE of the HOMO-LUMO gap, eV", xlim=(0, 1.12 * max(means.values())))
    axes.grid(axis="y", visible=False)


#: Size in inches and function of each picture.
PICTURES = {
    "ranks": ((7, 3.6), draw_ranks),
    "coverage": ((5.2, 3.6), draw_coverage),
    "differences": ((7, 6.2), draw_differences),
    "pretraining": ((7, 5.4), draw_gains),
    "speed": ((7, 3), draw_rates),
    "adme": ((7, 8), draw_adme),
    "mixers": ((7, 3.6), draw_mixers),
    "demo": ((7, 2.4), draw_demo),
}


def draw(name: str) -> Figure:
    """Draw one of :data:`PICTURES`."""
    size, function = PICTURES[name]
    figure = Figure(figsize=size, layout="constrained")
    function(figure.add_subplot())
    return figure
