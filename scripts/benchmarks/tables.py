"""GraphSlice and chemprop on TDC's ADMET group and MoleculeNet, and the tables of docs/benchmarks.md.

``--data DIR --chemprop ENV/bin/chemprop`` trains and appends every result as a line to docs/benchmarks/results.jsonl.
Results that exist are skipped, so an interrupted benchmark is continued by the same command, and seeds can be added. To
repeat a training, delete its lines. docs/benchmarks/published.csv has the figures of the leaderboard.
"""

import argparse
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from benchmarks import results
from benchmarks.results import RESULTS, markdown, read_results
from benchmarks.table_methods import COMPONENTS_OF, METHODS, Chemprop, Commands, GraphSlice, fill_missing
from benchmarks.table_tasks import METRICS, MOLECULE_NET, TASKS, TDC, Task, read_table, score
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.system.machine import cores, hardware_info

# Resamples of the tasks for the interval of a difference of mean ranks.
_RESAMPLES = 10_000
# Probability of a false alarm of a test, and the fewest seeds of a method that is tested.
_ALPHA, _LEAST_SEEDS = 0.05, 3
#: Methods of the table of components, and all methods that the document shows.
COMPONENTS = (*COMPONENTS_OF["graphslice"], "graphslice-ensemble")
DISPLAYED = ("graphslice", "chemprop", *COMPONENTS, *COMPONENTS_OF["scratch"])
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
#: By task and metric, by method: a value for each seed.
Scores = dict[tuple[str, str], dict[str, dict[int, float]]]
#: Rows of the table of times: the least number of rows for training and validation, and its name.
_SIZES = {0: "fewer than 1,000", 1000: "1,000 to 3,000", 3000: "more than 3,000"}


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


def latest(lines: Iterable[dict]) -> dict[tuple[str, str, str, int], dict]:
    """The last line of each task, metric, method and seed, in order."""
    return dict(sorted({(line["task"], line["metric"], line["method"], line["seed"]): line for line in lines}.items()))


def grouped(lines: Iterable[dict], field: str) -> Scores:
    """The values of a field that are there; of two lines for the same the later counts."""
    found: Scores = defaultdict(lambda: defaultdict(dict))
    for (task, metric, method, seed), line in latest(lines).items():
        if line[field] is not None:
            found[task, metric][method][seed] = line[field]
    return found


def comparable(scores: Scores, board: pd.DataFrame) -> pd.DataFrame:
    """A row for each task of TDC, a column for each published method and each of ours, whose name is in backquotes.

    Errors are negative, so that more is better. Ours are means over the seeds.
    """
    ours: dict[str, dict[str, float]] = defaultdict(dict)
    for name, task in TDC.items():
        for method, values in scores.get((name, task.metrics[0]), {}).items():
            ours[f"`{method}`"][name] = mean(values)
    signs = pd.Series({name: 1 if METRICS[task.metrics[0]][1] else -1 for name, task in TDC.items()})
    return board[[*BOARDS, "best"]].join(pd.DataFrame(ours)).mul(signs, axis=0)


def mean(values: dict[int, float]) -> float:
    """The mean over the seeds."""
    return float(np.mean(list(values.values())))


def benchmark_tables(lines: list[dict], board: pd.DataFrame) -> dict[str, str]:
    """Return the tables of the document by name."""
    lines = [line for line in lines if line["method"] in DISPLAYED]
    scores = grouped(lines, "test")
    means = comparable(scores, board)
    return {
        "tdc": tdc_table(scores, board["best"].dropna()) + significance_text(scores, means),
        "components": components_table(scores),
        "moleculenet": moleculenet_table(scores),
        "ranks": ranks_table(means) + rank_text(means),
        "times": seconds_table(lines),
        "versions": origin_text(latest(lines).values()),
    }


def benchmark_numbers(lines: list[dict], board: pd.DataFrame) -> dict[str, str]:
    """Return numbers that sentences quote, by name."""
    means = comparable(grouped(lines, "test"), board)
    ranked = {"rank-default": "graphslice", "rank-ensemble": "graphslice-ensemble"}
    ranked |= {"rank-network": "graphslice-network", "rank-scratch": "scratch-network"}
    numbers = {name: f"{places(method, means)[f'`{method}`'].mean():.1f}" for name, method in ranked.items()}
    numbers |= {"best-wins": win_count(means, "best", "`graphslice`"), "rank-difference": rank_difference(means)[-1]}
    return numbers | {"ensemble-wins": win_count(means, "`graphslice-ensemble`", "`graphslice`")}


def cell(values: dict[int, float]) -> str:
    """Mean ± standard deviation, and how many seeds where there are not five."""
    if not values:
        return ""
    return mean_and_std(list(values.values()), 3) + (f" ({len(values)})" if len(values) != 5 else "")


def metric_cell(metric: str) -> str:
    """A metric and an arrow in the direction of better values."""
    return f"{metric} {'↑' if METRICS[metric][1] else '↓'}"


def tdc_table(scores: Scores, best: pd.Series) -> str:
    """Return a row for each task of TDC; ours is bold where its mean is better than the best published one."""
    rows = [["task", "metric", "`graphslice`", "`chemprop`", "compared with `chemprop`", "best published"]]
    for name, task in TDC.items():
        metric = task.metrics[0]
        found = scores[name, metric]
        ours, published = cell(found["graphslice"]), f"{best[name]:.3f}" if name in best else ""
        if published and (mean(found["graphslice"]) > best[name]) == METRICS[metric][1]:
            ours = f"**{ours}**"
        difference = compare(found["graphslice"], found["chemprop"], METRICS[metric][1])[0]
        rows.append([name, metric_cell(metric), ours, cell(found["chemprop"]), difference, published])
    return markdown(rows)


def compare(ours: dict[int, float], theirs: dict[int, float], higher_is_better: bool) -> tuple[str, float]:
    """Compare two methods on one test set by Welch's t-test over seeds; return the verdict and the p-value."""
    if min(len(ours), len(theirs)) < _LEAST_SEEDS:
        return "too few seeds", math.nan
    p = float(ttest_ind(list(ours.values()), list(theirs.values()), equal_var=False).pvalue)
    if not p < _ALPHA:
        return "not significant", p
    return "better" if (mean(ours) > mean(theirs)) == higher_is_better else "worse", p


def holm(p_values: Iterable[float]) -> int:
    """Count the p-values that remain significant after Holm's correction."""
    ordered = sorted(p_values)
    failing = (k for k, p in enumerate(ordered) if p > _ALPHA / (len(ordered) - k))
    return next(failing, len(ordered))


def comparisons(scores: Scores) -> list[tuple[str, float]]:
    """Compare ``graphslice`` with ``chemprop`` on each task of TDC."""
    found = [(scores[name, task.metrics[0]], METRICS[task.metrics[0]][1]) for name, task in TDC.items()]
    return [compare(task["graphslice"], task["chemprop"], higher) for task, higher in found]


def significance_text(scores: Scores, means: pd.DataFrame) -> str:
    """Count the tasks on which ``graphslice`` is better and worse than ``chemprop`` and than the best published."""
    tests = comparisons(scores)
    count = Counter(verdict for verdict, _ in tests)
    remaining = holm(p for _, p in tests if not math.isnan(p))
    few = f", too few seeds on {count['too few seeds']}" if count["too few seeds"] else ""
    alone = [scores[name, task.metrics[0]]["scratch-network"] for name, task in TDC.items()]
    return (
        f"\n`graphslice` is better than `chemprop` on {count['better']} of {len(tests)} tasks, worse on "
        f"{count['worse']}, not significantly different on {count['not significant']}{few}\n"
        f"(Welch's t-test over seeds, two-sided, 5% on each task). After Holm's correction for {len(tests)} tests, "
        f"{remaining} differences are significant.\n"
        f"The best published entry of each task, compared by means alone, is better than `graphslice` on "
        f"{win_count(means, 'best', '`graphslice`')} tasks.\n\n"
        f"One network against another: `scratch-network`, without pretraining and base models, is better than "
        f"`chemprop` on {win_count(means, '`scratch-network`', '`chemprop`')} tasks by means alone "
        f"(of one seed on {sum(len(values) == 1 for values in alone)} of them).\n"
    )


def components_table(scores: Scores) -> str:
    """Return the scores of the parts of the default, and of an ensemble, on TDC's tasks."""
    rows = [["task", *(f"`{name}`" for name in COMPONENTS)]]
    for name, task in TDC.items():
        found = scores[name, task.metrics[0]]
        rows.append([name, *(cell(found[method]) for method in COMPONENTS)])
    return markdown(rows)


def moleculenet_table(scores: Scores) -> str:
    """Return the scores on MoleculeNet over the splits that all methods have."""
    methods = ("graphslice", "graphslice-network", "chemprop")
    rows = [["task", "metric", *(f"`{name}`" for name in methods), "splits"]]
    for task in MOLECULE_NET.values():
        for metric in task.metrics:
            found = [scores[task.name, metric][name] for name in methods]
            common = sorted(set.intersection(*(set(values) for values in found)))
            if common:
                cells = [mean_and_std([values[seed] for seed in common], 3) for values in found]
                rows.append([task.name, metric_cell(metric), *cells, len(common)])
    return markdown(rows)


def win_count(means: pd.DataFrame, method: str, rival: str) -> str:
    """Count the tasks, of those that both have, on which the first is better."""
    both = means[[method, rival]].dropna()
    return f"{(both[method] > both[rival]).sum()} of {len(both)}"


def places(method: str, means: pd.DataFrame) -> pd.DataFrame:
    """Rank a method among the published ones: a row for each task that both have, a column for each method."""
    known = means[list(BOARDS)].notna().any(axis=1)
    return means.loc[known, [f"`{method}`", *BOARDS]].dropna(subset=f"`{method}`").rank(axis=1, ascending=False)


def ranks_table(means: pd.DataFrame) -> str:
    """Return the mean rank of each method, the best first: ours among the published ones, these among them and ours."""
    ranks = {name: places("graphslice", means)[name].mean() for name in BOARDS}
    ranks |= {f"`{name}`": places(name, means)[f"`{name}`"].mean() for name in DISPLAYED if f"`{name}`" in means}
    rows = [["method", "mean rank", "better than `graphslice`", "`graphslice` better"]]
    for name, rank in sorted(ranks.items(), key=lambda item: item[1]):
        title = f"published: {BOARDS[name]}" if name in BOARDS else name
        pairs = ((name, "`graphslice`"), ("`graphslice`", name)) if name != "`graphslice`" else ()
        counts = [win_count(means, *pair) for pair in pairs] or ["", ""]
        rows.append([title, f"{rank:.1f}", *counts])
    return markdown(rows)


def rank_difference(means: pd.DataFrame) -> tuple[np.ndarray, float, float, str]:
    """Compare the ranks of ``graphslice`` and the best published method: a paired bootstrap over the tasks.

    Returns the differences by task, the 95% interval of their mean, and whether it excludes 0 in words.
    """
    ranks = places("graphslice", means)
    differences = (ranks["maplight_gnn"] - ranks["`graphslice`"]).dropna().to_numpy()
    draws = np.random.default_rng(0).integers(0, len(differences), (_RESAMPLES, len(differences)))
    low, high = np.percentile(differences[draws].mean(axis=1), [2.5, 97.5])
    return differences, low, high, "not significant" if low <= 0 <= high else "significant"


def rank_text(means: pd.DataFrame) -> str:
    """State the difference in mean rank from the best published method, its interval and the conclusion."""
    differences, low, high, conclusion = rank_difference(means)
    return (
        f"\nOn the {len(differences)} tasks that both have, the mean rank of MapLight + GNN minus that of `graphslice` "
        f"is {differences.mean():.2f} (95%\ninterval {low:.2f} to {high:.2f}; paired bootstrap over the tasks, "
        f"{_RESAMPLES:,} resamples). The difference is {conclusion}.\n"
    )


def seconds_table(lines: list[dict]) -> str:
    """Return the median processor times of tables of similar size, and the median ratio to ``chemprop``."""
    methods = ("chemprop", "graphslice", "graphslice-ensemble")
    medians = pd.DataFrame(
        {
            task: {name: np.median(list(values.values())) for name, values in found.items() if name in methods}
            for (task, metric), found in grouped(lines, "cpu_seconds").items()
            if metric == TASKS[task].metrics[0]
        }
    ).T.dropna(subset=["chemprop", "graphslice"])
    sizes = {line["task"]: line["n_train"] + line["n_valid"] for line in lines}
    least = pd.Series({task: max(k for k in _SIZES if k <= sizes[task]) for task in medians.index})
    titles = (f"`{name}`, s" for name in methods)
    rows = [["rows for training and validation", "tasks", *titles, "`graphslice` / `chemprop`"]]
    for size, title in _SIZES.items():
        group = medians[least == size]
        ratio = f"{(group['graphslice'] / group['chemprop']).median():.2f}"
        rows.append([title, len(group), *(f"{group[name].median():.0f}" for name in methods), ratio])
    return markdown(rows)


def origin_text(lines: Collection[dict]) -> str:
    """Return the versions of the packages and the processors."""
    versions = sorted({" ".join(line["version"].split()[:2]) for line in lines})
    machines = sorted({line["machine"] for line in lines})
    return f"Measured with {', '.join(versions)}, on {' and '.join(machines)}.\n"
