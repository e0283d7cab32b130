"""GraphSlice and chemprop on TDC's ADMET group and MoleculeNet, and the tables of docs/benchmarks.md.

``--data DIR --chemprop ENV/bin/chemprop`` trains and appends every result as a line to docs/benchmarks/results.jsonl.
Results that exist are skipped, so an interrupted benchmark is continued by the same command, and seeds can be added. To
repeat a training, delete its lines. docs/benchmarks/published.csv has the figures of the leaderboard.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import results
from benchmarks.results import RESULTS, markdown, read_results
from benchmarks.table_methods import COMPONENTS_OF, METHODS, Chemprop, Commands, GraphSlice, fill_missing
from benchmarks.table_tasks import METRICS, MOLECULE_NET, TASKS, TDC, Task, read_table, score
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.system.machine import cores, hardware_info

# Resamples of the tasks for the interval of a difference of mean ranks.
_RESAMPLES = 10_000
#: Methods whose commands are timed, and all that the document shows; METHODS no longer has some of them.
COMMANDS = ("chemprop", "small-forest", "graphslice", "graphslice-ensemble")
DISPLAYED = (
    *("chemprop", "small-forest", "graphslice", *COMPONENTS_OF["graphslice"], "graphslice-ensemble"),
    *("scratch-network", "unseen-network"),
)
#: Methods of TDC's leaderboard, and their names in the document.
BOARDS = {
    "chemprop": "Chemprop",
    "chemprop_rdkit": "Chemprop-RDKit",
    "minimol": "MiniMol",
    "maplight": "MapLight",
    "maplight_gnn": "MapLight + GNN",
    "rdkit2d_mlp": "RDKit2D + MLP",
    "attentivefp": "AttentiveFP",
    "gcn": "GCN",
}
#: Columns of the leaderboard in the score table, and the rivals in the table of wins.
PUBLISHED = {name: BOARDS[name] for name in ("chemprop", "chemprop_rdkit", "minimol", "maplight", "maplight_gnn")}
PUBLISHED |= {"best": "best"}
RIVALS = ("chemprop", "chemprop_rdkit", "best")

#: By task and metric, by method: a value for each seed.
Scores = dict[tuple[str, str], dict[str, list[float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, list(TASKS), "results.jsonl")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--chemprop", help="command of chemprop, in a separate environment")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of parallel commands, which share the cores (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet."""
    if "chemprop" in options.methods and options.chemprop is None:
        raise SystemExit("the method chemprop needs its command: --chemprop ENV/bin/chemprop")
    methods = [Chemprop(options.chemprop) if name == "chemprop" else GraphSlice(name) for name in options.methods]
    threads = max(1, cores() // options.jobs)
    # Task by task and seed by seed, so that results that a table compares are measured close in time.
    work = [
        (
            {"task": task, "method": method.name, "seed": seed},
            partial(run_and_evaluate, TASKS[task], seed, method, options.data, threads),
        )
        for task in options.tasks
        for seed in options.seeds
        for method in methods
    ]
    results.run_missing(options.results, work, options.jobs)


def run_and_evaluate(task: Task, seed: int, method: Chemprop | GraphSlice, data: Path, threads: int) -> list[dict]:
    """Train and evaluate a method on a task; return a line for each of its components and each metric."""
    table = read_table(task, data, seed)
    molecules = table.frame("test", labels=False)
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), threads)
        predictions = method.predict(table, molecules, seed, commands)
    labels = table.labels[table.split == "test"]
    rows = {f"n_{name}": int((table.split == name).sum()) for name in ("train", "valid", "test")}
    shared = {"seconds": round(commands.seconds, 2), "cpu_seconds": round(commands.cpu_seconds, 2), "threads": threads}
    shared |= {"machine": hardware_info()["machine"], "version": method.version}
    lines = []
    for name, method_predictions in predictions.items():
        values, num_missing = fill_missing(method_predictions, table)
        for metric in task.metrics:
            value = score(metric, labels, values)
            line = {"task": task.name, "method": name, "seed": seed, "metric": metric}
            line["test"] = round(value, 5) if math.isfinite(value) else None
            lines.append({**line, **rows, "unanswered": num_missing, **shared})
    return lines


def recorded() -> tuple[list[dict], pd.DataFrame]:
    """The lines of the results, and the published scores by task."""
    board = pd.read_csv(RESULTS / "published.csv", index_col="task")
    return read_results(RESULTS / "results.jsonl"), board.reindex(list(TDC))


def grouped(lines: Iterable[dict], field: str) -> Scores:
    """The values of a field that are there; of two lines for the same the later counts."""
    latest = {(line["task"], line["metric"], line["method"], line["seed"]): line[field] for line in lines}
    found: Scores = defaultdict(lambda: defaultdict(list))
    for (task, metric, method, _), value in sorted(latest.items()):
        if value is not None:
            found[task, metric][method].append(value)
    return found


def comparable(scores: Scores, board: pd.DataFrame) -> pd.DataFrame:
    """A row for each task of TDC, a column for each published method and each of ours, whose name is in backquotes.

    Errors are negative, so that more is better. Ours are means over the seeds.
    """
    ours: dict[str, dict[str, float]] = defaultdict(dict)
    for name, task in TDC.items():
        for method, values in scores.get((name, task.metrics[0]), {}).items():
            ours[f"`{method}`"][name] = float(np.mean(values))
    signs = pd.Series({name: 1 if METRICS[task.metrics[0]][1] else -1 for name, task in TDC.items()})
    return board[[*BOARDS, "best"]].join(pd.DataFrame(ours)).mul(signs, axis=0)


def benchmark_tables(lines: list[dict], board: pd.DataFrame) -> dict[str, str]:
    """Return the tables of the document by name."""
    scores = grouped(lines, "test")
    means = comparable(scores, board)
    methods = [name for name in DISPLAYED if any(name in found for found in scores.values())]
    versions = sorted({line["version"] for line in lines})
    machines = sorted({f"{line['machine']}, {line['threads']} threads a command" for line in lines})
    made_by = f"Versions, of each line in results.jsonl: {'; '.join(versions)}. Machines: {'; '.join(machines)}."
    return {
        "tdc": score_table(TDC.values(), ["graphslice", "chemprop"], scores, board),
        "tdc-methods": score_table(TDC.values(), methods, scores, None),
        "moleculenet": score_table(MOLECULE_NET.values(), methods, scores, None),
        "wins": wins_table(methods, means),
        "ranks": ranks_table(methods, means) + rank_text(means),
        "times": seconds_table([name for name in methods if name in COMMANDS], grouped(lines, "cpu_seconds")),
        "versions": f"{made_by}\n",
    }


def cell(values: list[float]) -> str:
    """Mean ± deviation, and how many where there are not five."""
    if not values:
        return ""
    return mean_and_std(values, 3) + (f" ({len(values)})" if len(values) != 5 else "")


def score_table(tasks: Iterable[Task], methods: list[str], scores: Scores, board: pd.DataFrame | None) -> str:
    """Return a table of scores by task and method, with the published figures if there are any."""
    columns = {} if board is None else {title: board[name].dropna() for name, title in PUBLISHED.items()}
    lines = [["task", "metric", *(f"`{name}`" for name in methods), *(f"published: {title}" for title in columns)]]
    for task in tasks:
        for metric in task.metrics:
            found = scores.get((task.name, metric), {})
            arrow = "↑" if METRICS[metric][1] else "↓"
            figures = [cell(found.get(name, [])) for name in methods]
            if any(figures):
                known = (f"{column[task.name]:.3f}" if task.name in column else "" for column in columns.values())
                lines.append([task.name, f"{metric} {arrow}", *figures, *known])
    return markdown(lines)


def wins_table(methods: list[str], means: pd.DataFrame) -> str:
    """Return a table of the wins of each method over the published methods and over the other methods."""
    own = [f"`{method}`" for method in methods]
    lines = [["better than", *(f"published: {PUBLISHED[name]}" for name in RIVALS), *own]]
    for title in own:
        lines.append([title, *("" if title == rival else win_count(means, title, rival) for rival in (*RIVALS, *own))])
    return markdown(lines)


def win_count(means: pd.DataFrame, method: str, rival: str) -> str:
    """Count the tasks, of those that both have, on which the first is better."""
    both = means[[method, rival]].dropna()
    return f"{(both[method] > both[rival]).sum()} of {len(both)}"


def places(method: str, means: pd.DataFrame) -> pd.DataFrame:
    """Rank a method among the published ones: a row for each task that both have, a column for each method."""
    known = means[list(BOARDS)].notna().any(axis=1)
    return means.loc[known, [f"`{method}`", *BOARDS]].dropna(subset=f"`{method}`").rank(axis=1, ascending=False)


def ranks_table(methods: list[str], means: pd.DataFrame) -> str:
    """Return a table of the mean rank of each method, with those of the published methods on the same tasks."""
    lines = [["compared with the board", "tasks", "its mean rank", *BOARDS.values()]]
    for method in methods:
        found = places(method, means)
        if len(found):
            lines.append([f"`{method}`", str(len(found)), *("" if pd.isna(m) else f"{m:.1f}" for m in found.mean())])
    return markdown(lines)


def rank_text(means: pd.DataFrame) -> str:
    """Compare the mean ranks of ``graphslice`` and the best published method: a paired bootstrap over the tasks."""
    ranks = places("graphslice", means)
    differences = (ranks["maplight_gnn"] - ranks["`graphslice`"]).dropna().to_numpy()
    draws = np.random.default_rng(0).integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.percentile(differences[draws].mean(axis=1), [2.5, 97.5])
    conclusion = "The two are level." if low <= 0 <= high else "That is more than chance."
    return (
        f"\nOn the {len(differences)} tasks that have both, the mean rank of MapLight + GNN minus that of `graphslice` "
        f"is {differences.mean():.2f} (95%\ninterval {low:.2f} to {high:.2f}; paired bootstrap over the tasks, "
        f"{_RESAMPLES:,} resamples). {conclusion}\n"
    )


def seconds_table(methods: Sequence[str], seconds: Scores) -> str:
    """Return a table of the median seconds by task and method."""
    lines = [["task", *(f"`{name}`" for name in methods)]]
    for name, task in TASKS.items():
        found = seconds.get((name, task.metrics[0]), {})
        if found:
            lines.append([name, *(f"{np.median(found[method]):.0f}" if method in found else "" for method in methods)])
    return markdown(lines)
