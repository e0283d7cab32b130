"""Memory and rate of the command line on files of growing size; Linux only, where /proc reports the memory.

The molecules of ``--molecules`` are repeated to files of ``--rows`` rows. Memory is the largest sum over all processes
of a command, shared pages counted once.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks.report import figure, memory_of_processes
from graphslice.system.machine import DEMO_CSV


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run folder of the model that predicts")
    parser.add_argument("--molecules", default=DEMO_CSV, help="a CSV file with a column smiles (default: the demo set)")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000], help="sizes of the files")


def run(options: argparse.Namespace) -> list[dict]:
    smiles = pd.read_csv(options.molecules)["smiles"].tolist()
    figures, measured = [], {"featurize": [], "predict": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for rows in options.rows:
            path = _write(folder / f"{rows}.csv", smiles, rows)
            for name, command in _commands(options.run, path, folder).items():
                seconds, memory = _measured(command)
                measured[name].append((rows, seconds))
                goal = "<= 1500" if name == "predict" and rows >= 1_000_000 else ""
                figures.append(figure(f"{name}, {rows:,} rows: memory", memory / 1e6, "MB", goal=goal))
                figures.append(figure(f"{name}, {rows:,} rows: rate, start included", rows / seconds, "molecules/s"))
        for name, found in measured.items():
            if len(found) > 1:
                (few, short), (many, long) = found[-2:]
                figures.append(figure(f"{name}: rate without the start", (many - few) / (long - short), "molecules/s"))
    return figures


def _write(path: Path, smiles: list[str], rows: int) -> Path:
    with path.open("w") as file:
        file.write("smiles\n")
        file.writelines(f"{text}\n" for text in itertools.islice(itertools.cycle(smiles), rows))
    return path


def _commands(run: str, path: Path, folder: Path) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "graphslice"]
    return {
        "featurize": [*command, "featurize", str(path), "-o", str(folder / "out.arrow"), "--overwrite"],
        "predict": [*command, "predict", run, str(path), "-o", str(folder / "out.csv"), "--overwrite", "--device=cpu"],
    }


def _measured(command: list[str]) -> tuple[float, int]:
    """Seconds and bytes that a command took."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    most = 0
    while process.poll() is None:
        most = max(most, memory_of_processes(process.pid))
        time.sleep(0.5)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(process.stderr.read().decode())
    return seconds, most
