"""Train a model of its own for each endpoint of ``adme``, and score it on the first fold of the joint model.

    python scripts/separate_adme.py runs/folds -o separate.jsonl

RUN is the cross-validation of ``pack_adme.py``. Each endpoint's model is trained by ``graphslice train`` with its
defaults on the labelled molecules outside the first fold, and predicts those in it: the rows that train and test the
joint model. Endpoints that the file holds already are not trained again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import graphslice
from graphslice.config import RunConfig
from graphslice.data.dataset_loaders import load_dataset
from graphslice.evaluation.metrics import score
from graphslice.run_files import find_members, read_config, read_splits
from graphslice.tasks import Task


def train_and_score(table: pd.DataFrame, task: Task, config: RunConfig) -> dict:
    """Train on the rows of ``split`` train and return the scores of those of test; columns smiles, label, split."""
    train, test = (table[table["split"] == name] for name in ("train", "test"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.assign(split="train").to_csv(folder / "train.csv", index=False)
        transform = () if task.classes else ("--transform", task.transform)
        command = [sys.executable, "-m", "graphslice", "train", "--dataset", folder / "train.csv", "--targets", "label"]
        options = [*transform, "--cache", folder / "cache", "--out", folder / "run"]
        subprocess.run(list(map(str, [*command, *options])), check=True, capture_output=True)
        predicted = graphslice.load(folder / "run", "cpu").predict(test["smiles"].tolist())
    metrics = ("auroc", "auprc") if task.classes else ("mae", "rmse", "spearman")
    labels = test["label"].to_numpy(np.float64)[:, None]
    return {each: score(each, "adme", [task], labels, predicted) for each in metrics}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    config = read_config(options.run)
    dataset = load_dataset(config.data)
    is_test = np.isin(np.arange(len(dataset)), read_splits(find_members(options.run)[0])["test"])
    table = pd.DataFrame({"smiles": list(dataset.smiles), "split": np.where(is_test, "test", "train")})
    done = {json.loads(line)["endpoint"] for line in options.out.open()} if options.out.exists() else set()
    counts = np.isfinite(dataset.targets).sum(axis=0)
    for t in np.argsort(counts):
        task = dataset.tasks[t]
        if task.name in done:
            continue
        own = table.assign(label=dataset.targets[:, t]).dropna(subset="label")
        line = {"endpoint": task.name, "fold": 0, "separate": train_and_score(own, task, config)}
        with options.out.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
