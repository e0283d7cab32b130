"""Rehearsal of ``graphslice predict MODEL FOLDER -o FOLDER`` on the molecules of tables in other SMILES notations.

One process, one that is killed three times, two workers of Ray and four jobs of an array must write the same files. A
line for each is added to docs/benchmarks/shards.jsonl, of which the tables of docs/howto/hundred-million.md are made.
Memory is the largest sum over all processes, shared pages counted once (Linux, where /proc reports it). A last line
counts the molecules whose predictions depend on the notation.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import read_table, write_table
from rdkit import Chem

from benchmarks.report import memory_of_processes
from benchmarks.results import RESULTS, append_results, markdown
from benchmarks.table_methods import version
from graphslice.inference.shards import SHARD_ROWS
from graphslice.system.machine import hardware_info

# Rows of a file, and least number of notations of a molecule.
_FILE_ROWS, _NOTATIONS = 1_000_000, 4
_WHOLE, _KILLED, _RAY, _JOBS = "one process", "killed three times", "two workers of Ray", "four jobs"
_NOTATIONS_OF_ALL = "every notation"
#: The options of the commands that are run one after the other, by the name of the way.
WAYS = {
    _WHOLE: [[]],
    _KILLED: [[]],
    _RAY: [["--engine=ray", "--workers=2"]],
    _JOBS: [[f"--shard={job}/4"] for job in range(1, 5)],
}
# Of the table: rows that are predicted, cores of a large machine, and dollars for an hour of a core of a cloud.
_MANY, _CORES, _DOLLARS = 100_000_000, 64, 0.04
# Differences between notations, relative to the standard deviation of the predictions, that count as rounding.
_ROUNDING = 1e-5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", help="the model that predicts")
    parser.add_argument("--name", help="name of the model in the results (default: MODEL)")
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="files with a column smiles or mol")
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows to predict (default: %(default)s)")
    parser.add_argument("--folder", type=Path, required=True, help="where tables and predictions are written")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument("--results", type=Path, default=RESULTS / "shards.jsonl")


def run(options: argparse.Namespace) -> None:
    """Write the tables, and predict them in each way."""
    source, smiles = options.folder / "tables", _molecules(options.tables, options.rows)
    if not source.exists():
        write_tables(source, smiles, options.rows)
    shards = -(-options.rows // SHARD_ROWS)
    first: dict[str, bytes] | None = None
    for way in options.ways:
        out = options.folder / way.replace(" ", "-")
        command = [sys.executable, "-m", "graphslice", "predict", options.model, str(source), "-o", str(out)]
        kills = [shards // 4, shards // 2, shards * 3 // 4] if way == _KILLED else []
        begin, cpu_begin, memory = time.perf_counter(), _cpu_seconds(), []
        for flags in WAYS[way]:
            _predict([*command, *flags], out, kills, memory)
        line = {"model": options.name or options.model, "way": way, "rows": options.rows}
        line |= {"seconds": round(time.perf_counter() - begin)}
        if way != _RAY:  # whose processes are not children of the command
            line["cpu_seconds"] = round(_cpu_seconds() - cpu_begin)
        halves = memory[: len(memory) // 2], memory[len(memory) // 2 :]
        files = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
        first = first or files
        line |= {"megabytes_by_half": [round(max(half, default=0) / 1e6) for half in halves]}
        line |= {"bytes_read": sum(path.stat().st_size for path in source.iterdir())}
        line |= {"bytes_written": sum(map(len, files.values())), "same_files": files == first}
        _append(options.results, line)
    line = {"model": options.name or options.model, "way": _NOTATIONS_OF_ALL, "rows": options.rows}
    _append(options.results, line | differences(out, len(smiles)))


def _append(path: Path, line: dict) -> None:
    append_results(path, [line | {"machine": hardware_info()["machine"], "version": version()}])
    print(line, flush=True)


def _predict(command: list[str], out: Path, kills: list[int], memory: list[int]) -> None:
    """Run a command to its end, killed as soon as ``out`` has some numbers of shards; append its memory."""
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None:
                memory.append(memory_of_processes(process.pid))
                if kills and len(list(out.glob("*.parquet"))) >= kills[0]:
                    process.kill()
                    kills.pop(0)
                    break
                time.sleep(3)
            else:
                if process.returncode:
                    raise SystemExit(process.stderr.read().decode())
                return


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _molecules(sources: list[Path], rows: int) -> list[str]:
    """Return the molecules of tables, or a random part of them, that fill so many rows in several notations."""
    columns = (pd.read_csv(path, usecols=lambda name: name in ("smiles", "mol")) for path in sources)
    smiles = np.unique(np.concatenate([column.iloc[:, 0].dropna().astype(str) for column in columns]))
    count = max(_NOTATIONS, -(-rows // len(smiles)))
    return np.random.default_rng(0).permutation(smiles)[: -(-rows // count)].tolist()


def write_tables(folder: Path, smiles: list[str], rows: int) -> None:
    """Write Parquet files of the molecules, all in one notation before the next."""
    count = -(-rows // len(smiles))
    notations = [_notations(text, count, seed) for seed, text in enumerate(smiles, 1)]
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


def differences(out: Path, molecules: int) -> dict[str, int]:
    """Count the molecules of :func:`write_tables` by what their notations change: no bit of the predictions, their
    rounding, more, or whether there are any."""
    table = read_table(out)
    predicted = [table[name].to_numpy() for name in table.column_names if pa.types.is_floating(table[name].type)]
    values = np.stack(predicted, axis=1)[: len(table) // molecules * molecules].reshape(-1, molecules, len(predicted))
    unknown = np.isnan(values).any(axis=2)
    spread = (np.ptp(values, axis=0) / np.nanstd(values[0], axis=0)).max(axis=1)
    counts = {"equal": spread == 0, "rounded": (spread > 0) & (spread < _ROUNDING), "different": spread >= _ROUNDING}
    counts |= {"without_prediction": unknown.all(axis=0), "sometimes": unknown.any(axis=0) & ~unknown.all(axis=0)}
    return {"notations": len(values)} | {name: int(each.sum()) for name, each in counts.items()}


def rehearsal_table(lines: list[dict]) -> str:
    """Return a row for each way in which a model predicted the same rows, and how many depend on the notation."""
    rows = [["model", "rows", "predicted by", "minutes", "memory in the first and second half, MB", "files"]]
    for line in (line for line in lines if line["way"] not in (_WHOLE, _NOTATIONS_OF_ALL)):
        memory = ", ".join(f"{half:,}" for half in line["megabytes_by_half"])
        files = "equal" if line["same_files"] else "**different**"
        cells = [line["model"], f"{line['rows']:,}", line["way"], f"{line['seconds'] / 60:.0f}", memory, files]
        rows.append(cells)
    (found,) = (line for line in lines if line["way"] == _NOTATIONS_OF_ALL)
    molecules = sum(found[name] for name in ("equal", "rounded", "different", "without_prediction", "sometimes"))
    note = (
        f"Of {molecules:,} molecules in {found['notations']} notations each, {found['equal']:,} have predictions equal "
        f"in every bit, and {found['rounded']:,} predictions that differ by rounding, below a hundred-thousandth of "
        f"the standard deviation. Molecules with different predictions: {found['different']}; without one in every "
        f"notation: {found['without_prediction']}, in some: {found['sometimes']}."
    )
    return f"{markdown(rows)}\n{note}\n"


def cost_table(lines: list[dict]) -> str:
    """Return a row for each model that one process predicted: what a hundred million rows cost at its rate."""
    head = ["model", "microseconds a row", "core-hours", f"hours on {_CORES} cores"]
    rows = [[*head, "MB of a process", "GB read", "GB written", "price"]]
    for line in (line for line in lines if line["way"] == _WHOLE):
        rate, scale = line["cpu_seconds"] / line["rows"], _MANY / line["rows"] / 1e9
        hours = rate * _MANY / 3600
        cells = [f"{1e6 * rate:,.0f}", f"{hours:,.0f}", f"{hours / _CORES:.1f}", max(line["megabytes_by_half"])]
        cells += [f"{line[name] * scale:,.0f}" for name in ("bytes_read", "bytes_written")]
        rows.append([line["model"], *cells, f"${hours * _DOLLARS:,.2f}"])
    first = lines[0]
    note = f"{first['machine']}, {first['version']}; ${_DOLLARS} for an hour of a core."
    return f"{markdown(rows)}\n{note}\n"
