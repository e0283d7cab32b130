"""Memory and rate of the command line on files of growing size; Linux only, where /proc reports the memory.

The molecules of ``--molecules`` are repeated to files of ``--rows`` rows. Memory is the largest sum
over all processes of a command, shared pages counted once. ``--against`` runs another program on
the same files, in turns, and compares the rates; both without their start, from the two largest files.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.report import figure
from graphslice.package_data import DEMO_CSV


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run folder of the model that predicts")
    parser.add_argument("--molecules", default=DEMO_CSV, help="a CSV file with a column smiles (default: the demo set)")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000], help="sizes of the files")
    parser.add_argument("--against", metavar="COMMAND", help="another program, with {input} and {output} in its call")
    parser.add_argument("--against-rows", type=int, nargs=2, default=[4_000, 24_000], help="sizes of its files")
    parser.add_argument("--turns", type=int, default=1, help="how often each is run; the fastest counts")
    parser.add_argument("--plot", metavar="FILE.png", help="draw memory against the size of the file")


def run(options: argparse.Namespace) -> list[dict]:
    with open(options.molecules) as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    figures, lines = [], {"featurize": [], "predict": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for rows in options.rows:
            path = _write(folder / f"{rows}.csv", smiles, rows)
            for name, command in _commands(options.run, path, folder).items():
                seconds, memory = _measured(command)
                lines[name].append((path.stat().st_size, memory, rows, seconds))
                goal = "<= 1500" if name == "predict" and rows >= 1_000_000 else ""
                figures.append(figure(f"{name}, {rows:,} rows: memory", memory / 1e6, "MB", goal=goal))
                figures.append(figure(f"{name}, {rows:,} rows: rate, start included", rows / seconds, "molecules/s"))
        for name, found in lines.items():
            if len(found) > 1:
                (_, _, few, short), (_, _, many, long) = found[-2:]
                figures.append(figure(f"{name}: rate without the start", (many - few) / (long - short), "molecules/s"))
        if options.against:
            figures += _against(options, smiles, folder)
    if options.plot:
        _plot(Path(options.plot), lines)
    return figures


def _write(path: Path, smiles: list[str], rows: int) -> Path:
    with path.open("w") as file:
        file.write("smiles\n")
        file.writelines(f"{text}\n" for text in itertools.islice(itertools.cycle(smiles), rows))
    return path


def _commands(run: str, path: Path, folder: Path) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "graphslice"]
    return {
        "featurize": [*command, "featurize", str(path), "-o", str(folder / "out.arrow")],
        "predict": [*command, "predict", run, str(path), "-o", str(folder / "out.csv"), "--overwrite", "--device=cpu"],
    }


def _seconds(command: list[str]) -> float:
    """How long a command took, without a look at its memory, which slows it down."""
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return time.perf_counter() - begin


def _measured(command: list[str]) -> tuple[float, int]:
    """Seconds and bytes that a command took."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    most = 0
    while process.poll() is None:
        most = max(most, sum(map(_bytes_of, _family(process.pid))))
        time.sleep(0.5)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(process.stderr.read().decode())
    return seconds, most


def _family(root: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    family = [root]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family


def _bytes_of(process: int) -> int:
    """Its share of memory: pages that several processes have count for each in part."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _against(options: argparse.Namespace, smiles: list[str], folder: Path) -> list[dict]:
    seconds: dict[str, list[float]] = {"ours": [], "other": []}
    files = [_write(folder / f"against{rows}.csv", smiles, rows) for rows in options.against_rows]
    for path in files:
        ours = _commands(options.run, path, folder)["predict"]
        other = [word.format(input=path, output=folder / "other.csv") for word in shlex.split(options.against)]
        turns: dict[str, list[float]] = {"ours": [], "other": []}
        for _ in range(options.turns):
            turns["ours"].append(_seconds(ours))
            turns["other"].append(_seconds(other))
        for name, found in turns.items():
            seconds[name].append(min(found))
    more = options.against_rows[1] - options.against_rows[0]
    rates = {name: more / (long - short) for name, (short, long) in seconds.items()}
    return [
        figure("predict, ours: rate without the start", rates["ours"], "molecules/s"),
        figure("predict, the other program: the same", rates["other"], "molecules/s"),
        figure("predict, ours over the other", rates["ours"] / rates["other"], "x"),
        figure(
            f"the same, start included, {options.against_rows[1]:,} rows", seconds["other"][1] / seconds["ours"][1], "x"
        ),
    ]


def _plot(path: Path, lines: dict[str, list[tuple[int, int, int, float]]]) -> None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6, 4), layout="constrained")
    axes = drawing.add_subplot(xlabel="size of the file, MB", ylabel="memory of all processes, MB", xscale="log")
    for name, found in lines.items():
        axes.plot([size / 1e6 for size, *_ in found], [memory / 1e6 for _, memory, *_ in found], marker="o", label=name)
    axes.set_ylim(0)
    axes.legend()
    axes.grid(True, alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=120)
