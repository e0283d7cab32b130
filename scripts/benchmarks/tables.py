"""Benchmark GraphSlice, chemprop and a random forest on embeddings on TDC's ADMET group and MoleculeNet.

``run --data DIR --chemprop ENV/bin/chemprop`` trains and appends every result as a line to
docs/benchmarks/results.jsonl. Results that exist are skipped, so an interrupted benchmark is continued by the same
command, and seeds can be added. To repeat a training, delete its lines. Every result also updates docs/benchmarks.md,
which ``render`` does without training. Its published figures are those of docs/benchmarks/published.csv;
``render --data DIR`` updates them from the leaderboard in DIR.
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
    """Add the options of the command."""
    actions = parser.add_subparsers(dest="action", required=True)
    begin = actions.add_parser("run", help="train, evaluate and store every result")
    begin.add_argument(
        "--data", type=Path, required=True, help="folder with tdc_admet/*.csv and the tables of MoleculeNet"
    )
    begin.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK", help="in order")
    begin.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    begin.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    begin.add_argument("--chemprop", help="command of chemprop, in a separate environment")
    begin.add_argument("--unseen", metavar="RUN", help="run pretrained without the molecules of TDC's test sets")
    begin.add_argument(
        "--jobs", type=int, default=1, help="number of parallel commands, which share the cores (default: %(default)s)"
    )
    render = actions.add_parser("render", help="make docs/benchmarks.md")
    render.add_argument(
        "--data", type=Path, help="folder with tdc_admet/leaderboard.csv, from which the published figures are read"
    )
    for subparser in (begin, render):
        subparser.add_argument("--results", type=Path, default=RESULTS)


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet, or render the results."""
    if options.action == "render":
        if options.data is not None:
            keep_published(options.data, options.results.parent / PUBLISHED)
        write_document(options.results)
        return
    methods = [make_method(name, options.chemprop, options.unseen) for name in options.methods]
    # Task by task and seed by seed, so that results that a table compares are measured close in time.
    work = [(TASKS[task], seed, method) for task in options.tasks for seed in options.seeds for method in methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        failures = [failure for failure in pool.map(lambda item: _attempt(options, *item), work) if failure]
    if failures:
        raise SystemExit(f"{len(failures)} of {len(work)} failed; the first: {failures[0]}")


def _attempt(options: argparse.Namespace, task: Task, seed: int, method: Method) -> str | None:
    """Train and store a result, unless it exists; return a description of the training if it failed, else None."""
    if options.results.exists() and (task.name, method.name, seed) in finished_runs(read_results(options.results)):
        return None
    try:
        lines = run_and_evaluate(task, seed, method, options.data, max(1, cores() // options.jobs))
    except CommandError as error:
        print(f"{task.name}, seed {seed}: {error}", file=sys.stderr, flush=True)
        return f"{task.name}, {method.name}, seed {seed}"
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with (
        _one_at_a_time,
        options.results.open("a") as file,
    ):  # in one write, since other processes may append to the file
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        write_document(options.results)
    scores = ", ".join(f"{line['method']} {line['metric']} {line['test']}" for line in lines)
    print(f"{task.name}, {method.name}, seed {seed}: {scores}; {lines[0]['seconds']} s", flush=True)
    return None


def write_document(results: Path) -> Path:
    """Write the document of a file of results, such as docs/benchmarks.md of docs/benchmarks/results.jsonl."""
    document = results.parent.with_suffix(".md")
    document.write_text(rendered(read_results(results), results.parent / PUBLISHED), encoding="utf-8")
    return document


def finished_runs(results: list[dict]) -> set[tuple[str, str, int]]:
    """Return the tasks, methods and seeds that have results for every metric."""
    existing = {(line["task"], line["method"], line["seed"], line["metric"]) for line in results}
    keys = {key[:3] for key in existing}
    return {key for key in keys if all((*key, metric) in existing for metric in TASKS[key[0]].metrics)}


def run_and_evaluate(task: Task, seed: int, method: Method, data: Path, threads: int) -> list[dict]:
    """Train and evaluate a method on a task; return a line for each metric."""
    table = read_table(task, data, seed)
    molecules = table.frame("valid", "test", labels=False)
    evaluated = np.isin(table.split, ("valid", "test"))
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), threads)
        predictions = method.predict(table, molecules, seed, commands)
    labels, split = table.labels[evaluated], table.split[evaluated]

    def on(name: str, metric: str, values: np.ndarray) -> float | None:
        value = score(metric, labels[split == name], values[split == name])
        return round(value, 5) if math.isfinite(value) else None

    rows = {f"n_{name}": int((table.split == name).sum()) for name in ("train", "valid", "test")}
    times = {"seconds": round(commands.seconds, 2), "cpu_seconds": round(commands.cpu_seconds, 2), "threads": threads}
    lines = []
    for name, method_predictions in predictions.items():
        values, num_missing = fill_missing(method_predictions, table)
        shared = (
            rows
            | {"unanswered": num_missing}
            | times
            | {"machine": hardware_info()["machine"], "version": method.version}
        )
        key = {"task": task.name, "method": name, "seed": seed}
        lines += [
            key | {"metric": m, "test": on("test", m, values), "valid": on("valid", m, values)} | shared
            for m in task.metrics
        ]
    return lines
