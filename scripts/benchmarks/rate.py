"""Rate of ``predict`` for a file of molecules, compared with chemprop; makes a table of docs/benchmarks.md.

``--data DIR --chemprop ENV/bin/chemprop`` trains on 600 and on 4,400 molecules of one table (TDC's LD50), predicts
those of another (lipophilicity) once and three times, in turns, and adds a line for each prediction to
docs/benchmarks/rate.jsonl. The difference of the two processor times is without the start of the command.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.results import RESULTS, append_results, markdown
from benchmarks.table_methods import Chemprop, Commands, version
from benchmarks.table_tasks import TDC, Table, read_table
from graphslice.system.machine import hardware_info

TRAINED_ON, PREDICTED, TIMES, ROUNDS = "ld50_zhu", "lipophilicity_astrazeneca", 3, 3
#: Numbers of training molecules of the default; the rate of a network does not depend on them.
FEW, MANY = 600, 4_400
#: Name of each model in the results, and in the table.
MODELS = {
    "chemprop": "chemprop",
    "chemprop-fast": "chemprop with `--use-cuikmolmaker-featurization`",
    f"default-{MANY}": f"default, {MANY:,} training molecules: network, forest, boosting and kernel machine",
    f"default-{FEW}": f"default, {FEW} training molecules",
    "network": "its network alone",
}
#: Those that the others are compared with.
RIVALS = ("chemprop", "chemprop-fast")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--data", type=Path, required=True, help="folder with tdc_admet/*.csv")
    parser.add_argument("--chemprop", required=True, help="command of chemprop, in an environment of its own")
    parser.add_argument("--results", type=Path, default=RESULTS / "rate.jsonl")


def run(options: argparse.Namespace) -> None:
    """Measure in turns."""
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Train the models and add a line for each prediction of a file."""
    commands = Commands(folder, threads=1)
    table = read_table(TDC[TRAINED_ON], options.data, 0)
    predict = _train(table, options.chemprop, commands)
    smiles = read_table(TDC[PREDICTED], options.data, 0).smiles
    molecules = pd.DataFrame({"smiles": smiles[~np.isin(smiles, table.smiles)]})
    files = {len(molecules) * times: folder / f"times-{times}.csv" for times in (1, TIMES)}
    for path, times in zip(files.values(), (1, TIMES), strict=True):
        pd.concat([molecules] * times).to_csv(path, index=False)
    versions = dict.fromkeys(MODELS, version()) | dict.fromkeys(RIVALS, Chemprop(options.chemprop).version)
    for number in range(ROUNDS):
        for model in MODELS:
            for count, path in files.items():
                before = commands.cpu_seconds
                commands.run(*predict[model], path)
                line = {"model": model, "round": number, "molecules": count}
                line["cpu_seconds"] = round(commands.cpu_seconds - before, 2)
                line |= {"machine": hardware_info()["machine"], "version": versions[model]}
                append_results(options.results, [line])
                print(line, flush=True)


def _train(table: Table, chemprop: str, commands: Commands) -> dict[str, list[object]]:
    """Train each model; return its command of prediction, which the file to predict follows."""
    fit, out = commands.folder / "fit.csv", commands.folder / "out.csv"
    (target,) = table.targets
    ours = [sys.executable, "-m", "graphslice"]
    rows, predict = table.frame("train", "valid").drop(columns="split").sample(frac=1, random_state=0), {}
    runs = {f"default-{MANY}": MANY, f"default-{FEW}": FEW, "network": FEW}
    for name, count in runs.items():
        rows.head(count).to_csv(fit, index=False)
        baselines = ("--baselines", "off" if name == "network" else "on")
        run = commands.folder / name
        commands.run(
            *(*ours, "train", "--dataset", fit, "--targets", target, "--split", "random", *baselines, "--out", run)
        )
        predict[name] = [*ours, "predict", run, "--overwrite", "-o", out]
    theirs = commands.folder / "chemprop"  # the rate does not depend on the number of epochs
    commands.run(
        *(chemprop, "train", "--data-path", fit, "--smiles-columns", "smiles", "--target-columns", target),
        *("--task-type", "regression", "--epochs", 5, "--output-dir", theirs),
    )
    slow = [chemprop, "predict", "--smiles-columns", "smiles", "--model-paths", theirs, "--output", out]
    fast = [*slow, "--use-cuikmolmaker-featurization"]
    return predict | {name: [*words, "--test-path"] for name, words in zip(RIVALS, (slow, fast), strict=True)}


def microseconds(lines: list[dict]) -> dict[str, float]:
    """Return the processor time of a molecule in microseconds, without the start, by model: the difference between the
    two files of the smallest times of all rounds, which other work of the machine prolongs least."""
    found = {}
    for model in MODELS:
        times: dict[int, list[float]] = {}
        for line in (line for line in lines if line["model"] == model):
            times.setdefault(line["molecules"], []).append(line["cpu_seconds"])
        (few, first), (many, second) = sorted(times.items())
        found[model] = 1e6 * (min(second) - min(first)) / (many - few)
    return found


def rate_table(lines: list[dict]) -> str:
    """Return the table: the processor times, and the rates relative to those of chemprop."""
    found = microseconds(lines)
    rows = [["model", "microseconds a molecule", *(f"times the rate of {MODELS[rival]}" for rival in RIVALS)]]
    rows += [
        [MODELS[model], f"{value:,.0f}", *(f"{found[rival] / value:.1f}" for rival in RIVALS)]
        for model, value in found.items()
    ]
    versions = ", ".join(dict.fromkeys(line["version"] for line in lines))
    counts = sorted({len({line["round"] for line in lines if line["model"] == model}) for model in MODELS})
    rounds = " to ".join(map(str, counts))
    return f"{markdown(rows)}\n{lines[0]['machine']}, {versions}, smallest times of {rounds} rounds in turns.\n"
