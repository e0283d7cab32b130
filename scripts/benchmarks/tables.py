"""Benchmark GraphSlice, chemprop and a random forest on embeddings on TDC's ADMET group and MoleculeNet.

``--data DIR --chemprop ENV/bin/chemprop`` trains and appends every result as a line to docs/benchmarks/results.jsonl.
Results that exist are skipped, so an interrupted benchmark is continued by the same command, and seeds can be added. To
repeat a training, delete its lines. ``--published`` only updates docs/benchmarks/published.csv from the leaderboard in
DIR.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import results
from benchmarks.table_methods import METHODS, Commands, Method, fill_missing, make_method
from benchmarks.table_report import PUBLISHED, keep_published
from benchmarks.table_tasks import TASKS, Task, read_table, score
from graphslice.system.machine import cores, hardware_info


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, list(TASKS), "results.jsonl")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--chemprop", help="command of chemprop, in a separate environment")
    parser.add_argument("--unseen", metavar="RUN", help="run pretrained without the molecules of TDC's test sets")
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of parallel commands, which share the cores (default: %(default)s)"
    )
    parser.add_argument("--published", action="store_true", help="only take the published figures of the leaderboard")


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet."""
    if options.published:
        keep_published(options.data, options.results.parent / PUBLISHED)
        return
    methods = [make_method(name, options.chemprop, options.unseen) for name in options.methods]
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


def run_and_evaluate(task: Task, seed: int, method: Method, data: Path, threads: int) -> list[dict]:
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
