"""Tables of docs/benchmarks.md, made from the results of ``benchmark.py tables``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.results import markdown
from benchmarks.table_methods import COMPONENTS_OF
from benchmarks.table_tasks import METRICS, MOLECULE_NET, TDC, Task
from graphslice.evaluation.format_scores import mean_and_std

PUBLISHED = "published.csv"
# Resamples of the tasks for the interval of a difference of mean ranks.
_RESAMPLES = 10_000
#: Methods whose commands are timed, and all that the document shows.
COMMANDS = ("chemprop", "small-forest", "graphslice", "graphslice-ensemble", "former", "former-ensemble")
DISPLAYED = (
    *("chemprop", "small-forest", "graphslice", *COMPONENTS_OF["graphslice"], "graphslice-ensemble"),
    *("former", "former-network", "former-forest", "former-boosting", "former-ensemble"),
    *("scratch-network", "unseen-network"),
)
#: Methods of the first table, next to the published figures.
FIRST = ("graphslice", "chemprop")
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
#: Columns of the leaderboard in the score table.
PUBLISHED_COLUMNS = {
    name: BOARDS[name] for name in ("chemprop", "chemprop_rdkit", "minimol", "maplight", "maplight_gnn")
} | {"best": "best"}


def keep_published(data: Path, out: Path) -> None:
    """Take the columns :data:`BOARDS` and the best of the leaderboard in a folder of data."""
    board = pd.read_csv(data / "tdc_admet" / "leaderboard.csv", dtype=str)
    out.parent.mkdir(parents=True, exist_ok=True)
    board[["task", "metric", *BOARDS, "best"]].to_csv(out, index=False)


def benchmark_tables(results: list[dict], board: pd.DataFrame) -> dict[str, str]:
    """Return the tables of the document by name.

    Args:
        results: lines of the results.
        board: published scores, of :func:`keep_published`, by task.
    """
    scores = grouped(results, "test")
    methods = [name for name in DISPLAYED if any(name in found for found in scores.values())]
    timed = [name for name in methods if name in COMMANDS]
    versions = sorted({line["version"] for line in results})
    machines = sorted({f"{line['machine']}, {line['threads']} threads a command" for line in results})
    made_by = f"Versions, of each line in results.jsonl: {'; '.join(versions)}. Machines: {'; '.join(machines)}."
    return {
        "tdc": score_table(TDC.values(), [name for name in FIRST if name in methods], scores, board),
        "tdc-methods": score_table(TDC.values(), methods, scores, None),
        "moleculenet": score_table(MOLECULE_NET.values(), methods, scores, None),
        "wins": wins_table(methods, scores, board),
        "ranks": ranks_table(methods, scores, board) + rank_text(scores, board),
        "times": seconds_table(timed, grouped(results, "cpu_seconds")),
        "versions": f"{made_by}\n",
    }


_TIE = """
On the {count} tasks that have both, the mean rank of MapLight + GNN minus that of `graphslice` is {mean:.2f} (95%
interval {low:.2f} to {high:.2f}; paired bootstrap over the tasks, {resamples:,} resamples). {conclusion}
"""

#: By task and metric, by method: a value for each seed.
Scores = dict[tuple[str, str], dict[str, list[float]]]


def grouped(results: Iterable[dict], field: str) -> Scores:
    """The values of a field that are there; of two lines for the same the later counts."""
    latest = {(line["task"], line["metric"], line["method"], line["seed"]): line[field] for line in results}
    found: Scores = defaultdict(lambda: defaultdict(list))
    for (task, metric, method, _), value in sorted(latest.items()):
        if value is not None:
            found[task, metric][method].append(value)
    return found


def cell(values: list[float]) -> str:
    """Mean ± deviation, and how many where there are not five."""
    if not values:
        return ""
    return mean_and_std(values, 3) + (f" ({len(values)})" if len(values) != 5 else "")


def score_table(tasks: Iterable[Task], methods: list[str], scores: Scores, board: pd.DataFrame | None) -> str:
    """Return a table of scores by task and method, with the published figures if there are any."""
    columns = {} if board is None else {title: published(board, name) for name, title in PUBLISHED_COLUMNS.items()}
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


def published(board: pd.DataFrame, column: str) -> dict[str, float]:
    """Return the published scores of a method by task of TDC."""
    return board[column].reindex(list(TDC)).dropna().to_dict()


def mean_scores(method: str, scores: Scores) -> dict[str, float]:
    """Return the mean score of one of our methods by task of TDC."""
    found = {task.name: scores.get((task.name, task.metrics[0]), {}) for task in TDC.values()}
    return {task: float(np.mean(values[method])) for task, values in found.items() if method in values}


def wins_table(methods: list[str], scores: Scores, board: pd.DataFrame) -> str:
    """Return a table of the wins of each method over the published methods and over the other methods."""
    theirs = {f"published: {PUBLISHED_COLUMNS[name]}": name for name in ("chemprop", "chemprop_rdkit", "best")}
    rivals = {title: published(board, name) for title, name in theirs.items()}
    rivals |= {f"`{method}`": mean_scores(method, scores) for method in methods}
    lines = [["better than", *rivals]]
    for title in (f"`{method}`" for method in methods):
        lines.append([title, *("" if title == name else win_count(rivals[title], rivals[name]) for name in rivals)])
    return markdown(lines)


def ranks_table(methods: list[str], scores: Scores, board: pd.DataFrame) -> str:
    """Return a table of the mean rank of each method, with those of the published methods on the same tasks."""
    lines = [["compared with the board", "tasks", "its mean rank", *BOARDS.values()]]
    for method in methods:
        found = places(method, scores, board)
        if len(found):
            lines.append([f"`{method}`", str(len(found)), *("" if pd.isna(m) else f"{m:.1f}" for m in found.mean())])
    return markdown(lines)


def places(method: str, scores: Scores, board: pd.DataFrame) -> pd.DataFrame:
    """Rank a method among the published ones: a row for each task that both have, a column for each method.

    The first column is the method's; its name is in backquotes if a published method has the same.
    """
    figures = board[list(BOARDS)].reindex(list(TDC)).dropna(how="all")
    own = f"`{method}`" if method in BOARDS else method
    figures = figures.assign(**{own: pd.Series(mean_scores(method, scores), dtype=float)}).dropna(subset=own)
    higher = [METRICS[TDC[task].metrics[0]][1] for task in figures.index]
    return figures.mul(np.where(higher, -1, 1), axis=0).rank(axis=1)[[own, *BOARDS]]


def rank_difference(ranks: pd.DataFrame, method: str, rival: str) -> tuple[int, float, float, float]:
    """Compute the difference of the mean ranks of a rival and a method, over the tasks that have both.

    Returns:
        The number of tasks, the mean of the rival's rank minus the method's, and the 95% interval of that mean: its
        percentiles over resamples of the tasks (paired bootstrap with a fixed seed).
    """
    differences = (ranks[rival] - ranks[method]).dropna().to_numpy()
    draws = np.random.default_rng(0).integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.percentile(differences[draws].mean(axis=1), [2.5, 97.5])
    return len(differences), float(differences.mean()), float(low), float(high)


def rank_text(scores: Scores, board: pd.DataFrame) -> str:
    """Compare the mean ranks of ``graphslice`` and the best published method in a paragraph; empty without both."""
    ranks = places("graphslice", scores, board)
    if not len(ranks) or ranks["maplight_gnn"].isna().all():
        return ""
    count, mean, low, high = rank_difference(ranks, "graphslice", "maplight_gnn")
    conclusion = "The two are level." if low <= 0 <= high else "That is more than chance."
    return _TIE.format(count=count, mean=mean, low=low, high=high, conclusion=conclusion, resamples=_RESAMPLES)


def win_count(figures: dict[str, float], rival: dict[str, float]) -> str:
    """Count the tasks, of those that both have, on which the first is better."""
    both = [task for task in figures if task in rival]
    more = {task: METRICS[TDC[task].metrics[0]][1] for task in both}
    better = sum(figures[t] > rival[t] if more[t] else figures[t] < rival[t] for t in both)
    return f"{better} of {len(both)}"


def seconds_table(methods: list[str], seconds: Scores) -> str:
    """Return a table of the median seconds by task and method."""
    lines = [["task", *(f"`{name}`" for name in methods)]]
    for task in (*TDC.values(), *MOLECULE_NET.values()):
        found = seconds.get((task.name, task.metrics[0]), {})
        if found:
            lines.append([task.name, *(f"{np.median(found[name]):.0f}" if name in found else "" for name in methods)])
    return markdown(lines)
