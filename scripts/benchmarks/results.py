"""Results of benchmarks: lines of JSON, each of a training that is done once, and tables of them."""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.table_methods import ROOT, CommandError
from graphslice.evaluation.format_scores import markdown_table

#: Folder of the files of results.
RESULTS = ROOT / "docs" / "benchmarks"
_appending = threading.Lock()


def read_results(path: Path) -> list[dict]:
    """Return the lines of the results; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append_results(path: Path, lines: Iterable[dict]) -> None:
    """Append lines to a file, in one write, since other processes may append to it; it is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _appending, path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def add_arguments(parser: argparse.ArgumentParser, tasks: Sequence[str], results: str, seeds: int = 5) -> None:
    """Add the options that benchmarks on tables share; ``results`` is the name of the file of results."""
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with tdc_admet/*.csv and the tables of MoleculeNet")
    add("--tasks", nargs="+", choices=tasks, default=list(tasks), metavar="TASK", help="in order")
    add("--seeds", nargs="+", type=int, default=list(range(seeds)))
    add("--results", type=Path, default=RESULTS / results)


def run_missing(path: Path, work: Sequence[tuple[dict, Callable[[], list[dict]]]], jobs: int = 1) -> None:
    """Append the results that a file does not have: what identifies a training, and what computes its lines.

    If a command fails, its message is printed, the others are run, and the process ends with an error.
    """

    def attempt(key: dict, compute: Callable[[], list[dict]]) -> bool:
        if any(key.items() <= line.items() for line in read_results(path)):
            return True
        try:
            lines = [key | line for line in compute()]
        except CommandError as error:
            print(f"{key}: {error}", file=sys.stderr, flush=True)
            return False
        append_results(path, lines)
        print(*map(json.dumps, lines), sep="\n", flush=True)
        return True

    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(attempt, *zip(*work, strict=True)))
    failed = [", ".join(map(str, key.values())) for (key, _), success in zip(work, done, strict=True) if not success]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(work)} failed; the first: {failed[0]}")


def markdown(lines: Sequence[Sequence[object]]) -> str:
    """Format a Markdown table whose first line is the header."""
    return "".join(f"{line}\n" for line in markdown_table(list(map(str, lines[0])), lines[1:]))
