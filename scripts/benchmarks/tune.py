"""``graphslice tune`` compared with the defaults on tables of TDC's ADMET group; makes the table of docs/tuning.md.

``--data DIR`` trains both on the same training rows, predicts the test rows once, and adds a line for each to
docs/benchmarks/tune.jsonl. A table is searched once, with the first seed; the other seeds train with the values that
were found. Results that exist are skipped.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.results import markdown, read_results, run_missing
from benchmarks.table_methods import Commands, GraphSlice
from benchmarks.table_tasks import METRICS, TDC, Task
from benchmarks.tables import run_and_evaluate
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.evaluation.metrics import MIN_SEEDS, mean_interval
from graphslice.system.machine import cores

DEFAULTS, TUNED = "defaults", "tuned"


class Search(GraphSlice):
    """The final run of ``graphslice tune``.

    Args:
        minutes: budget of the search.
        options: further options.

    Attributes:
        found: number of trials, mean score on held-out folds of the defaults and of the selected trial, and the values
            of its hyperparameters.
    """

    def __init__(self, minutes: float, options: list[str]) -> None:
        super().__init__(TUNED, [*options, "--minutes", str(minutes)])
        self.found: dict = {}

    def _train(self, dataset: Path, options: Sequence[object], commands: Commands) -> Path:
        folder = commands.train(dataset, *options, command="tune")
        with (folder / "trials.csv").open(newline="") as file:
            trials = list(csv.DictReader(file))
        (chosen,) = [trial for trial in trials if trial["chosen"]]
        held_out = [float(trial["mean"] or trial["value"]) for trial in (trials[0], chosen)]
        values = dict(list(chosen.items())[list(chosen).index("reason") + 1 :])
        self.found = {"trials": len(trials), "chosen": int(chosen["trial"]), "held_out": held_out, "values": values}
        return folder / "run"


class Found(GraphSlice):
    """A run with the values that a search with another seed found.

    Args:
        found: the attribute of :class:`Search`.
        options: further options.
    """

    def __init__(self, found: dict, options: list[str]) -> None:
        # A hyperparameter without a value is left to the run, such as the number of epochs.
        chosen = {} if found["chosen"] == 0 else {name: value for name, value in found["values"].items() if value != ""}
        values = [f"--{name}={value}" for name, value in chosen.items()]
        super().__init__(TUNED, [*options, *values])
        self.found = found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, list(TDC), "tune.jsonl")
    parser.add_argument("--minutes", type=float, default=30.0, help="budget of each search (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=cores())


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet."""
    work = []
    for name in options.tasks:
        for seed in options.seeds:
            for key in ({"method": DEFAULTS}, {"method": TUNED, "minutes": options.minutes}):
                same = {"task": name, **key}
                work.append((same | {"seed": seed}, partial(_train_and_evaluate, options, TDC[name], same, seed)))
    run_missing(options.results, work)


def _train_and_evaluate(options: argparse.Namespace, task: Task, same: dict, seed: int) -> list[dict]:
    """Train with the defaults, with the values of a line with the same task, method and budget, or search."""
    metric = ["--metric", task.metrics[0].lower()]
    known = [line for line in read_results(options.results) if same.items() <= line.items()]
    if same["method"] == DEFAULTS:
        method = GraphSlice(DEFAULTS, metric)
    elif known:
        method = Found({key: known[0][key] for key in ("trials", "chosen", "held_out", "values")}, metric)
    else:
        method = Search(options.minutes, metric)
    (line,) = run_and_evaluate(task, seed, method, options.data, options.threads)
    return [line | getattr(method, "found", {})]


def tuning_table(lines: list[dict]) -> str:
    """Return the table: a row for each task and budget, over the seeds that both methods have."""
    rows = [["task", "metric", "minutes", "seeds", "trials", "defaults, test", "tuned, test", "tuned minus defaults"]]
    defaults = {(line["task"], line["seed"]): line for line in lines if line["method"] == DEFAULTS}
    tuned = [line for line in lines if line["method"] == TUNED and (line["task"], line["seed"]) in defaults]
    for task, minutes in dict.fromkeys((line["task"], line["minutes"]) for line in tuned):
        after = [line for line in tuned if (line["task"], line["minutes"]) == (task, minutes)]
        before = [defaults[task, line["seed"]]["test"] for line in after]
        scores = [line["test"] for line in after]
        metric, difference = after[0]["metric"], np.array(scores) - np.array(before)
        text = f"{difference.mean():+.4f}"
        if len(difference) >= MIN_SEEDS:
            low, high = mean_interval(difference)
            text += f" (95% interval {low:+.4f} to {high:+.4f})"
        trials = f"{np.mean([line['trials'] for line in after]):.0f}"
        arrow = "↑" if METRICS[metric][1] else "↓"
        cells = [task, f"{metric} {arrow}", f"{minutes:g}", str(len(after)), trials]
        rows.append([*cells, mean_and_std(before), mean_and_std(scores), text])
    return markdown(rows)
