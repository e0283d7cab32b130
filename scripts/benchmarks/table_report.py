"""Document of ``benchmark.py tables``, generated from its results."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.table_methods import COMPONENTS_OF
from benchmarks.table_tasks import METRICS, MOLECULE_NET, TDC, Task
from graphslice.evaluation.format_scores import markdown_table

PUBLISHED = "published.csv"
# Resamples of the tasks for the interval of a difference of mean ranks.
_RESAMPLES = 10_000
# File with notes that close the document, in the folder of the results.
_NOTES = "notes.md"
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

INTRODUCTION = """\
# Benchmarks on tables

GraphSlice, chemprop and published methods on TDC's ADMET group and MoleculeNet: the same rows, the defaults of both
packages. The [protocol](#protocol) describes each method.

Made by `python scripts/benchmark.py tables render` of [results.jsonl](benchmarks/results.jsonl), which `tables run
--data DIR --chemprop ENV/bin/chemprop` adds to; do not edit.
"""

_PROTOCOL = """\
## Protocol

- **Rows.** All methods have the same rows of a task and seed. TDC's ADMET group: the test set of TDC; an eighth of its
  training rows is the validation set, by scaffold, drawn by the seed as `get_train_valid_split` of the leaderboard
  does. MoleculeNet: a balanced scaffold split, 80 / 10 / 10, another one for each seed. Rows that RDKit cannot read are
  left out before. No command gets a label of the test set. Each method predicts with its own command, and scikit-learn
  and SciPy evaluate all predictions alike. TDC's splits separate scaffolds, not salts, charge states, tautomers and
  stereoisomers of one compound ([counts](results.md#splits)).
- **Metrics.** Mean ± standard deviation over seeds; the number of seeds is in brackets where it is not five. TDC: the
  metric of its leaderboard (AUROC for `bioavailability_ma`, of which the published scores are not kept here).
  MoleculeNet: the mean over targets; missing labels are left out, and targets with a single class in the test set. ↓
  lower is better, ↑ higher is better. Means over different numbers of seeds do not compare, least of all on
  MoleculeNet, where each seed has another split.
- **`chemprop`**: `chemprop train` with its defaults (50 epochs, best epoch by validation loss), then `chemprop
  predict`. It minimises the squared error of regression targets, `graphslice` the absolute error, which favours
  `graphslice` where the metric is MAE ([results.md](results.md#the-demo-set)).
- **`small-forest`**: a random forest of 500 trees by scikit-learn on the embeddings of `graphslice fingerprint small`,
  without the validation set.
- **`graphslice`**: `graphslice train` with its [defaults](howto/small-datasets.md), on training and validation sets as
  one, which it divides itself. **`graphslice-network`**, **`graphslice-forest`**, **`graphslice-boosting`** and
  **`graphslice-kernel`** are the components of the same run, alone; base models have no score where only the network
  predicted. **`graphslice-ensemble`** adds `--ensemble 5`.
- **`former`** and its components: the default before, without a kernel machine, with RDKit's descriptors, and with a
  validation set that never trained.
- **`scratch-network`**: the network with `--init-from none`. **`unseen-network`**: the network, fine-tuned from a model
  that was pretrained as `small` was, but without the molecules of any test set of TDC and their families.
- **Use of the test sets.** All choices of the present default were made on folds of training sets ([log](log.md)). The
  test sets were read once per line of results.jsonl, and before that for one seed of thirteen tables with an earlier
  choice of the stacking weights and of the number of epochs. Versions before 5114a05 have slower definitions of the
  descriptors; the present ones change the error of the ensemble by 0.4 ± 0.4% (29 trainings, 22 tables), which is
  within chance.
- **Published** scores are those of TDC's leaderboard, as their authors reported them, with their own validation sets.
  `best` is the best entry of each task, so no single method.
"""


def read_results(path: Path) -> list[dict]:
    """The lines of the results."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep_published(data: Path, out: Path) -> None:
    """Take the columns :data:`BOARDS` and the best of the leaderboard in a folder of data."""
    board = pd.read_csv(data / "tdc_admet" / "leaderboard.csv", dtype=str)
    out.parent.mkdir(parents=True, exist_ok=True)
    board[["task", "metric", *BOARDS, "best"]].to_csv(out, index=False)


def rendered(results: list[dict], published: Path) -> str:
    """Return the whole document.

    Args:
        results: lines of :func:`read_results`.
        published: file of :func:`keep_published`; its folder holds the notes that close the document.
    """
    board = pd.read_csv(published, index_col="task") if published.exists() else pd.DataFrame(columns=[*BOARDS, "best"])
    scores = grouped(results, "test")
    methods = [name for name in DISPLAYED if any(name in found for found in scores.values())]
    versions = sorted({line["version"] for line in results})
    machines = sorted({f"{line['machine']}, {line['threads']} threads a command" for line in results})
    made_by = f"Versions, of each line in results.jsonl: {'; '.join(versions)}. Machines: {'; '.join(machines)}."
    parts = [
        INTRODUCTION,
        "## TDC's ADMET group\n\n" + score_table(TDC.values(), [m for m in FIRST if m in methods], scores, board),
        "### All methods\n\n" + score_table(TDC.values(), methods, scores, None),
        "## MoleculeNet\n\n" + score_table(MOLECULE_NET.values(), methods, scores, None),
        _WINS + wins_table(methods, scores, board),
        _RANKS + ranks_table(methods, scores, board) + rank_text(scores, board),
        _SECONDS + seconds_table([name for name in methods if name in COMMANDS], grouped(results, "cpu_seconds")),
        f"{_PROTOCOL}\n{made_by}\n",
    ]
    notes = published.with_name(_NOTES)
    return "\n".join(parts + ([notes.read_text(encoding="utf-8")] if notes.exists() else []))


_WINS = """\
## Wins

On how many of TDC's tasks, of those that both have, the mean score of the method of the row is better than that of the
column; *published* scores are the leaderboard's.

"""

_RANKS = """\
## Ranks

The mean rank of a method among eight published methods of TDC's leaderboard, over the tasks that the method and the
leaderboard have, and the mean ranks of these methods on the same tasks. 1 is the best; equal scores share a rank.

![mean ranks](figures/ranks.svg)

"""

_TIE = """
On the {count} tasks that have both, the mean rank of MapLight + GNN minus that of `graphslice` is {mean:.2f} (95%
interval {low:.2f} to {high:.2f}; paired bootstrap over the tasks, {resamples:,} resamples). {conclusion} Eight
published methods are not the whole leaderboard: among all 19 to 26 entries of each task, as of autumn 2026, an audit
found a mean rank of 3.76 for `former` and of 3.95 for MapLight + GNN. Those entries are not kept here.

Task by task, how much lower the error of `graphslice` is (an absolute error, or what the score lacks to 1); bars are
standard deviations over seeds:

![error below that of two published methods](figures/differences.svg)
"""

_SECONDS = """\
## Time

Processor time in seconds for training and prediction, with the start of the commands, median over seeds. There is no
time of the first ensembles, whose members were not counted.

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
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}" + (f" ({len(values)})" if len(values) != 5 else "")


def score_table(tasks: Iterable[Task], methods: list[str], scores: Scores, board: pd.DataFrame | None) -> str:
    """Return a table of scores by task and method, with the published figures if there are any."""
    published = {} if board is None else PUBLISHED_COLUMNS
    lines = [
        ["task", "metric", *(f"`{name}`" for name in methods), *(f"published: {name}" for name in published.values())]
    ]
    for task in tasks:
        for metric in task.metrics:
            found = scores.get((task.name, metric), {})
            arrow = "↑" if METRICS[metric][1] else "↓"
            figures = [cell(found.get(name, [])) for name in methods]
            figures += [
                "" if (value := published_score(board, task.name, name)) is None else f"{value:.3f}"
                for name in published
            ]
            if any(figures[: len(methods)]):
                lines.append([task.name, f"{metric} {arrow}", *figures])
    return markdown(lines)


def published_score(board: pd.DataFrame | None, task: str, column: str) -> float | None:
    """Return a published figure, or None."""
    if board is None or task not in board.index or pd.isna(board.loc[task, column]):
        return None
    return float(board.loc[task, column])


def wins_table(methods: list[str], scores: Scores, board: pd.DataFrame) -> str:
    """Return a table of the wins of each method over the published methods and over the other methods."""
    ours: dict[str, dict[str, float]] = defaultdict(dict)
    for task in TDC.values():
        for method, values in scores.get((task.name, task.metrics[0]), {}).items():
            ours[method][task.name] = float(np.mean(values))
    rivals = {f"`{method}`": ours[method] for method in methods}
    for name in ("best", "chemprop_rdkit", "chemprop"):
        figures = {task: value for task in TDC if (value := published_score(board, task, name)) is not None}
        rivals = {f"published: {PUBLISHED_COLUMNS[name]}": figures} | rivals
    lines = [["better than", *rivals]]
    for method in methods:
        wins = [win_count(ours[method], rival) if rival is not ours[method] else "" for rival in rivals.values()]
        lines.append([f"`{method}`", *wins])
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
    """Rank a method among the published ones: a row for each task that both have, a column for each method."""
    found = {}
    for task in TDC.values():
        ours = scores.get((task.name, task.metrics[0]), {}).get(method)
        figures = {name: value for name in BOARDS if (value := published_score(board, task.name, name)) is not None}
        if ours and figures:
            figures[method] = float(np.mean(ours))
            found[task.name] = pd.Series(figures).rank(ascending=not METRICS[task.metrics[0]][1])
    return pd.DataFrame.from_dict(found, orient="index", columns=[method, *BOARDS])


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


def markdown(lines: list[list[str]]) -> str:
    """Format a Markdown table whose first line is the header."""
    return "".join(f"{line}\n" for line in markdown_table(lines[0], lines[1:]))
