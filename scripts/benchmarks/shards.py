"""Rehearsal of ``graphslice predict MODEL FOLDER -o FOLDER``: the same files from a process that is killed three times,
from two workers of Ray, and from four jobs of an array. Linux only, where /proc reports the memory.

The molecules of tables are repeated in other SMILES notations. Memory is the largest sum over all processes, shared
pages counted once; it is flat if the second half of a run needs no more than the first.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import write_table
from rdkit import Chem

from benchmarks.report import figure, memory_of_processes

# Rows of a file, and least number of notations of a molecule.
_FILE_ROWS, _NOTATIONS = 1_000_000, 4
_WAYS = {
    "killed three times": [[]],
    "two workers of Ray": [["--engine=ray", "--workers=2"]],
    "four jobs": [[f"--shard={job}/4"] for job in range(1, 5)],
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the model that predicts")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="files with a column smiles or mol")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows to predict (default: 10,000,000)")
    parser.add_argument("--folder", type=Path, required=True, help="where tables and predictions are written")
    parser.add_argument("--ways", nargs="*", choices=_WAYS, default=list(_WAYS), help="default: all")


def run(options: argparse.Namespace) -> list[dict]:
    source = options.folder / "tables"
    if not source.exists():
        write_tables(source, options.tables, options.rows)
    shards = -(-options.rows // 100_000)
    figures, outputs = [], []
    for way in options.ways:
        out = options.folder / way.replace(" ", "-")
        command = [sys.executable, "-m", "graphslice", "predict", options.model, str(source), "-o", str(out)]
        kills = [shards // 4, shards // 2, shards * 3 // 4] if way == "killed three times" else []
        begin, cpu_begin, memory = time.perf_counter(), _cpu_seconds(), []
        for flags in _WAYS[way]:
            _predict([*command, *flags], out, kills, memory)
        seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - cpu_begin
        halves = memory[: len(memory) // 2], memory[len(memory) // 2 :]
        figures.append(figure(f"{way}: time", seconds / 60, "minutes"))
        if "Ray" not in way:  # its processes are not children of the command
            figures.append(figure(f"{way}: processor time a row", 1e3 * cpu / options.rows, "ms"))
        for name, half in zip(("first", "second"), halves, strict=True):
            figures.append(figure(f"{way}: memory, {name} half", max(half) / 1e6, "MB"))
        outputs.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
        figures.append(figure(f"{way}: size a row", sum(map(len, outputs[-1].values())) / options.rows, "bytes"))
    differing = sum(one != other for one, other in pairwise(outputs))
    return [*figures, figure("ways with another file than the one before", differing, "", goal="0")]


def _predict(command: list[str], out: Path, kills: list[int], memory: list[int]) -> None:
    """Run a command to its end, killed as soon as ``out`` has some numbers of shards; append its memory."""
    kills = list(kills)
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None:
                memory.append(memory_of_processes(process.pid))
                if kills and len(list(out.glob("*.parquet"))) >= kills[0]:
                    process.kill()
                    kills.pop(0)
                    break
                time.sleep(1)
            else:
                if process.returncode:
                    raise SystemExit(process.stderr.read().decode())
                return


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_tables(folder: Path, sources: list[Path], rows: int) -> None:
    """Write Parquet files of the molecules of tables, each in several SMILES notations."""
    columns = (pd.read_csv(path, usecols=lambda name: name in ("smiles", "mol")) for path in sources)
    smiles = np.unique(np.concatenate([column.iloc[:, 0].dropna().astype(str) for column in columns]))
    count = max(_NOTATIONS, -(-rows // len(smiles)))
    smiles = np.random.default_rng(0).permutation(smiles)[: -(-rows // count)]
    notations = [_notations(text, count, seed) for seed, text in enumerate(smiles.tolist(), 1)]
    folder.mkdir(parents=True)
    for start in range(0, rows, _FILE_ROWS):
        numbers = range(start, min(rows, start + _FILE_ROWS))
        texts = [notations[number % len(smiles)][number // len(smiles)] for number in numbers]
        table = pa.table({"id": [f"mol-{number:08}" for number in numbers], "smiles": texts})
        write_table(table, folder / f"{start // _FILE_ROWS:03}.parquet")


def _notations(smiles: str, count: int, seed: int) -> list[str]:
    """Return a SMILES and random others of its molecule; the same again if it cannot be read."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None:
        return [smiles] * count
    return [smiles, *Chem.MolToRandomSmilesVect(molecule, count - 1, seed)]
