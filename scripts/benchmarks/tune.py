"""``graphslice tune`` compared with the defaults on tables of TDC's ADMET group.

``run --data DIR`` trains both on the same training rows, predicts the test rows once, and adds a line for each to
docs/benchmarks/tune.jsonl. A table is searched once, with the first seed; the other seeds train with the values that
were found. Results that exist are skipped. Every result also updates the table of docs/tuning.md, as ``render`` does
alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

from benchmarks.results import read_results
from benchmarks.table_methods import CommandError, Commands, GraphSlice
from benchmarks.table_tasks import METRICS, TDC, Task
from benchmarks.tables import run_and_evaluate
from graphslice.evaluation.confidence import MIN_SEEDS, mean_interval
from graphslice.evaluation.format_scores import markdown_table, mean_and_std
from graphslice.hardware import cores

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "tune.jsonl"
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

    def _train(self, *words: object, commands: Commands) -> Path:
        folder = commands.folder / "search"
        commands.run(sys.executable, "-m", "graphslice", "tune", "--out", folder, *words)
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
    actions = parser.add_subparsers(dest="action", required=True)
    begin = actions.add_parser("run", help="train, and keep every result")
    begin.add_argument("--data", type=Path, required=True, help="folder with tdc_admet/*.csv")
    begin.add_argument("--tasks", nargs="+", choices=TDC, default=list(TDC), metavar="TASK")
    begin.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    begin.add_argument("--minutes", type=float, default=30.0, help="budget of each search (default: %(default)s)")
    begin.add_argument("--threads", type=int, default=cores())
    render = actions.add_parser("render", help="make the table of docs/tuning.md")
    for subparser in (begin, render):
        subparser.add_argument("--results", type=Path, default=RESULTS)


def run(options: argparse.Namespace) -> None:
    """Run what has no result yet, or render the results."""
    if options.action == "run":
        for name in options.tasks:
            for seed in options.seeds:
                for method in (DEFAULTS, TUNED):
                    _attempt(options, TDC[name], method, seed)
    write_document(options.results)


def _attempt(options: argparse.Namespace, task: Task, name: str, seed: int) -> None:
    budget = {"minutes": options.minutes} if name == TUNED else {}
    same = {"task": task.name, "method": name, **budget}
    key = same | {"seed": seed}
    lines = [line for line in read_results(options.results) if same.items() <= line.items()]
    if any(line["seed"] == seed for line in lines):
        return
    metric = ["--metric", task.metrics[0].lower()]
    if name == DEFAULTS:
        method = GraphSlice(DEFAULTS, metric)
    elif lines:
        method = Found({key: lines[0][key] for key in ("trials", "chosen", "held_out", "values")}, metric)
    else:
        method = Search(options.minutes, metric)
    try:
        (line,) = run_and_evaluate(task, seed, method, options.data, options.threads)
    except CommandError as error:
        print(f"{key}: {error}", file=sys.stderr, flush=True)
        return
    line = {name: value for name, value in line.items() if name != "valid"}  # those rows are part of the training
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file:
        file.write(json.dumps(line | budget | getattr(method, "found", {})) + "\n")
    write_document(options.results)
    print(f"{key}: {line['metric']} {line['test']}", flush=True)


def write_document(results: Path) -> None:
    """Update the table between the marks of the document next to the folder of the results, if it exists."""
    document = results.parent.with_name("tuning.md")
    if document.exists():
        table = f"<!-- tune -->\n{rendered(read_results(results))}<!-- /tune -->"
        text = re.sub(r"<!-- tune -->\n.*?<!-- /tune -->", lambda _: table, document.read_text(), flags=re.DOTALL)
        document.write_text(text, encoding="utf-8")


def rendered(lines: list[dict]) -> str:
    """Return the table: a row for each task and budget, over the seeds that both methods have."""
    head = ["task", "metric", "minutes", "seeds", "trials", "defaults, test", "tuned, test", "tuned minus defaults"]
    rows = []
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
    return "".join(f"{line}\n" for line in markdown_table(head, rows))
