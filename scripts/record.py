"""Record runs as JSON lines: ``python scripts/record.py runs/A runs/B -o docs/results/demo.jsonl --model "..."``.

A line is made of a run directory's config.yaml, metrics.json, training.json and start.json. It holds no paths.
``--model`` names the row of the document to which the runs belong: runs with the same name are seeds of one row.
``python scripts/result_tables.py`` makes the tables of the documents from these lines.
"""

import argparse
import json
import math
from pathlib import Path

import pandas as pd
import yaml

from benchmarks.results import append_results
from graphslice.errors import InputError

_SPLITS = ("valid", "test")


def record(run: Path) -> dict:
    """The line of a run that has ended."""
    names = ("metrics.json", "training.json", "start.json")
    missing = [name for name in ("config.yaml", *names) if not (run / name).exists()]
    if missing:
        raise InputError(f"{run} has no {missing[0]}: give the directory of a run that has ended")
    metrics, training, start = (json.loads((run / name).read_text()) for name in names)
    config = yaml.safe_load((run / "config.yaml").read_text())
    steps, train = training["steps"], None
    if (run / "split.csv").exists():
        train = int((pd.read_csv(run / "split.csv")["split"] == "train").sum())
    trainer = config["trainer"]
    epochs = steps / math.ceil(train / trainer["batch_size"]) if train else trainer["max_epochs"]
    return {
        "dataset": Path(config["data"]["dataset"]).name,
        "targets": config["data"]["targets"],
        "mixer": config["model"]["mixer"],
        "init_from": Path(config["init_from"]).name if config["init_from"] else "none",
        "seed": trainer["seed"],
        "epochs": int(epochs) if epochs == int(epochs) else round(epochs, 1),
        "steps": steps,
        "parameters": training["parameters"],
        "seconds": round(training["seconds"]),
        **{split: _numbers(metrics[split]) for split in _SPLITS if split in metrics},
        **({"baselines": _numbers(metrics["baselines"]["test"])} if "baselines" in metrics else {}),
        "version": start["version"],
        "date": start["date"][:10],
        "machine": training["device"],
        "cores": start["machine"]["cores"],
    }


def _numbers(scores: dict) -> dict[str, float]:
    """The scores of a split, without those of single targets, to five digits."""
    return {name: round(value, 5) for name, value in scores.items() if isinstance(value, int | float)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="a file of JSON lines, to which lines are added")
    parser.add_argument("--model", required=True, help="the row of the table that the runs belong to")
    options = parser.parse_args()
    try:
        lines = [{"model": options.model, **record(run)} for run in options.runs]
    except InputError as error:
        parser.error(str(error))
    append_results(options.out, lines)


if __name__ == "__main__":
    main()
