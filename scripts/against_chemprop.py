"""Compare GraphSlice with chemprop on the same dataset and split, with the same training time.

``python scripts/against_chemprop.py data/demo.csv --target gap_ev --chemprop ENV/bin/chemprop``

chemprop is installed in a separate environment (``pip install chemprop==2.3.1``) and trained for ``--epochs`` with its
defaults, which minimise the squared error; ``--loss-function mae`` minimises the absolute error, by which both are
evaluated. GraphSlice is then trained for the same time, validation included, or for ``--seconds``; with
``--chemprop-only`` it is not trained. The times do not include start-up, featurization and testing. ``--threads`` gives
GraphSlice fewer cores than chemprop; for one core each, prefix the command with ``taskset -c 0``. GraphSlice is trained
from scratch and without tree ensembles. Other options go to ``graphslice train``, such as ``--init-from small``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks.results import append_results
from benchmarks.table_methods import chemprop_training
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.system.machine import hardware_info
from split_check import check_split

LOSSES = {"mse": "squared error (its default)", "mae": "absolute error"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="columns smiles, split (train, valid, test) and the target")
    parser.add_argument("--target", required=True)
    parser.add_argument("--chemprop", help="the command; without it only GraphSlice is trained")
    parser.add_argument("--epochs", type=int, default=20, help="of chemprop")
    parser.add_argument("--loss-function", default="mse", help="of chemprop: mse (its default), mae, ...")
    parser.add_argument("--chemprop-only", action="store_true", help="do not train GraphSlice")
    parser.add_argument("-o", "--out", type=Path, help="a file that gets one JSON line a run")
    parser.add_argument("--seconds", type=float, help="of GraphSlice (default: what chemprop took)")
    parser.add_argument("--threads", type=int, help="of GraphSlice (default: as many as there are cores)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, trained for as long too")
    options, options.further = parser.parse_known_args()
    if options.chemprop_only and not options.chemprop:
        parser.error("--chemprop-only needs --chemprop")
    table = pd.read_csv(options.csv)
    check_split(table["smiles"].tolist(), table["split"].tolist(), options.csv.name)
    print(" | ".join(f"{name} {value}" for name, value in hardware_info().items()), flush=True)
    print("\n| model | seed | test MAE | seconds of training |\n|---|---|---|---|", flush=True)
    found: dict[str, list[float]] = {}

    def note(name: str, seed: int, error: float, seconds: float) -> None:
        found.setdefault(name, []).append(error)
        if options.out:
            loss = LOSSES.get(options.loss_function, options.loss_function)
            of_chemprop = {"model": f"chemprop, {loss}", "epochs": options.epochs} if name == "chemprop" else {}
            line = {"model": name, "dataset": options.csv.name.split(".")[0], "seed": seed, **of_chemprop}
            line |= {"seconds": round(seconds), "test": {"mae": round(error, 5)}, "machine": hardware_info()["machine"]}
            append_results(options.out, [line])
        print(f"| {name} | {seed} | {error:.4f} | {seconds:.0f} |", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            seconds = options.seconds
            if options.chemprop:
                error, took = theirs(options, seed, Path(folder))
                note("chemprop", seed, error, took)
                seconds = seconds or took
            if options.chemprop_only:
                continue
            if seconds is None:
                raise SystemExit("give --chemprop or --seconds")
            if options.before:
                note("GraphSlice before", seed, *ours(options, seed, seconds, Path(folder), options.before))
            note("GraphSlice", seed, *ours(options, seed, seconds, Path(folder)))
    for name, errors in found.items():
        print(f"\n{name}: {mean_and_std(errors)}")


def ours(
    options: argparse.Namespace, seed: int, seconds: float, folder: Path, checkout: Path = Path(__file__).parents[1]
) -> tuple[float, float]:
    out = folder / f"graphslice-{seed}-{'before' if checkout == options.before else 'now'}"
    command = [sys.executable, "-P", "-m", "graphslice", "train", "--preset", options.preset, "--dataset", options.csv]
    command += ["--targets", options.target, "--out", out, "--trainer.seed", seed, "--trainer.accelerator", "cpu"]
    command += ["--init-from", "none", "--baselines", "off"]
    command += ["--trainer.max_minutes", seconds / 60, "--trainer.max_epochs", 10**6, *options.further]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    subprocess.run([str(part) for part in command], check=True, capture_output=True, env=environment)
    metrics = json.loads((out / "metrics.json").read_text())
    return metrics["test"]["mae"], json.loads((out / "training.json").read_text())["seconds"]


def theirs(options: argparse.Namespace, seed: int, folder: Path) -> tuple[float, float]:
    table = pd.read_csv(options.csv)
    table["split"] = table["split"].replace("valid", "val")
    table.to_csv(folder / "chemprop.csv", index=False)
    words = chemprop_training(folder / "chemprop.csv", [options.target], seed, folder / f"chemprop-{seed}")
    command = [options.chemprop, *words, "--epochs", options.epochs, "--loss-function", options.loss_function]
    command += ["--metrics", "mae"]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    output, begin, seconds = [], time.perf_counter(), float("nan")
    for line in process.stdout:
        output.append(line)
        if "Total FLOPs" in line:  # the last line before training
            begin = time.perf_counter()
        elif "`Trainer.fit` stopped" in line:
            seconds = time.perf_counter() - begin
    if process.wait():
        raise SystemExit("".join(output[-30:]))
    return float(re.search(r"test/mae: ([\d.]+)", "".join(output))[1]), seconds


if __name__ == "__main__":
    main()
