"""GraphSlice, chemprop and a random forest on embeddings on the tables of TDC's ADMET group and MoleculeNet.

``run --data DIR --chemprop ENV/bin/chemprop`` trains, and adds every result as a line to docs/benchmarks/results.jsonl;
what is there already is not done again, so it goes on where it was stopped, or with more seeds. To do something again,
delete its lines. Every result renews docs/benchmarks.md too, as ``render`` does alone. The published figures in it are
those of docs/benchmarks/published.csv; ``render --data DIR`` takes them anew from the leaderboard in DIR.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.table_methods import METHODS, CommandError, Commands, Method, fill_missing, make_method
from benchmarks.table_report import PUBLISHED, keep_published, read_results, rendered
from benchmarks.table_tasks import TASKS, Task, read_table, score
from graphslice.hardware import cores, hardware_info

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "results.jsonl"
_one_at_a_time = threading.Lock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    actions = parser.add_subparsers(dest="action", required=True)
    begin = actions.add_parser("run", help="train, and keep every result")
    begin.add_argument(
        "--data", type=Path, required=True, help="a folder with tdc_admet/*.csv and MoleculeNet's tables"
    )
    begin.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK", help="in order")
    begin.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    begin.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    begin.add_argument("--chemprop", help="its command, in an environment of its own")
    begin.add_argument("--unseen", metavar="RUN", help="pretrained without the molecules of TDC's test rows")
    begin.add_argument(
        "--jobs", type=int, default=1, help="commands at a time; they share the cores (default: %(default)s)"
    )
    render = actions.add_parser("render", help="make docs/benchmarks.md")
    render.add_argument(
        "--data", type=Path, help="take the published figures from tdc_admet/leaderboard.csv of this folder"
    )
    for subparser in (begin, render):
        subparser.add_argument("--results", type=Path, default=RESULTS)


def run(options: argparse.Namespace) -> None:
    """Run what has no result yet, or render the results."""
    if options.action == "render":
        if options.data is not None:
            keep_published(options.data, options.results.parent / PUBLISHED)
        write_document(options.results)
        return
    methods = [make_method(name, options.chemprop, options.unseen) for name in options.methods]
    # Task by task and seed by seed: what a table compares is done together.
    work = [(TASKS[task], seed, method) for task in options.tasks for seed in options.seeds for method in methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        failures = [why for why in pool.map(lambda one: _attempt(options, *one), work) if why]
    if failures:
        raise SystemExit(f"{len(failures)} of {len(work)} failed; the first: {failures[0]}")


def _attempt(options: argparse.Namespace, task: Task, seed: int, method: Method) -> str | None:
    """Keep the result of one training, unless it is there; why it failed, else."""
    if options.results.exists() and (task.name, method.name, seed) in finished_runs(read_results(options.results)):
        return None
    try:
        lines = run_and_evaluate(task, seed, method, options.data, max(1, cores() // options.jobs))
    except CommandError as error:
        print(f"{task.name}, seed {seed}: {error}", file=sys.stderr, flush=True)
        return f"{task.name}, {method.name}, seed {seed}"
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time, options.results.open("a") as file:  # in one piece: other processes may add theirs
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        write_document(options.results)
    said = ", ".join(f"{line['method']} {line['metric']} {line['test']}" for line in lines)
    print(f"{task.name}, {method.name}, seed {seed}: {said}; {lines[0]['seconds']} s", flush=True)
    return None


def write_document(results: Path) -> Path:
    """Make the document that belongs to a file of results: docs/benchmarks.md of docs/benchmarks/results.jsonl."""
    document = results.parent.with_suffix(".md")
    document.write_text(rendered(read_results(results), results.parent / PUBLISHED), encoding="utf-8")
    return document


def finished_runs(results: list[dict]) -> set[tuple[str, str, int]]:
    """The tasks, methods and seeds of which every metric is there."""
    found = {(line["task"], line["method"], line["seed"], line["metric"]) for line in results}
    keys = {key[:3] for key in found}
    return {key for key in keys if all((*key, metric) in found for metric in TASKS[key[0]].metrics)}


def run_and_evaluate(task: Task, seed: int, method: Method, data: Path, threads: int) -> list[dict]:
    """Train a method on a task, and judge it: a line for each metric."""
    table = read_table(task, data, seed)
    asked = table.frame("valid", "test", labels=False)
    judged = np.isin(table.split, ("valid", "test"))
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), threads)
        answers = method.answers(table, asked, seed, commands)
    labels, split = table.labels[judged], table.split[judged]

    def on(name: str, metric: str, given: np.ndarray) -> float | None:
        value = score(metric, labels[split == name], given[split == name])
        return round(value, 5) if math.isfinite(value) else None

    rows = {f"n_{name}": int((table.split == name).sum()) for name in ("train", "valid", "test")}
    took = {"seconds": round(commands.seconds, 2), "cpu_seconds": round(commands.cpu_seconds, 2), "threads": threads}
    lines = []
    for name, some in answers.items():
        given, unanswered = fill_missing(some, table)
        shared = (
            rows
            | {"unanswered": unanswered}
            | took
            | {"machine": hardware_info()["machine"], "version": method.version}
        )
        key = {"task": task.name, "method": name, "seed": seed}
        lines += [
            key | {"metric": m, "test": on("test", m, given), "valid": on("valid", m, given)} | shared
            for m in task.metrics
        ]
    return lines
