"""The packaged model ``adme`` compared with a model for each endpoint, and its rate; makes the tables of docs/adme.md.

``--separate RUN`` trains a model of its own for each endpoint and scores it on the first fold of RUN, the
cross-validation of ``pack_adme.py``: by ``graphslice train`` with its defaults on the labelled molecules outside that
fold, the rows that train and test the joint model. Endpoints that have a result are not trained again. ``--rate TABLE``
measures how many molecules a second one thread predicts from the SMILES of a table, with and without intervals. Lines
are added to docs/benchmarks/adme.jsonl.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

import graphslice
from benchmarks.results import RESULTS, append_results, markdown, read_results
from benchmarks.table_methods import ROOT, Commands
from graphslice.config import RunConfig
from graphslice.data.loaders import load_dataset
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.evaluation.metrics import score
from graphslice.runs.run_files import find_members, read_config, read_splits
from graphslice.system.machine import cores, hardware_info
from graphslice.tasks import Task

#: What the endpoints mean; part of the package.
ENDPOINTS = ROOT / "graphslice" / "weights" / "adme_endpoints.csv"
RESULTS_FILE = RESULTS / "adme.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--separate", type=Path, metavar="RUN", help="run with --folds")
    parser.add_argument("--rate", type=Path, metavar="TABLE", help="a table with a column smiles")


def run(options: argparse.Namespace) -> None:
    """Train and measure what is asked for."""
    if options.separate:
        train_separately(options.separate)
    if options.rate:
        append_results(RESULTS_FILE, [measure_rate(options.rate)])


def train_separately(run: Path) -> None:
    """Add a line for each endpoint that has none, those with few labels first."""
    config = read_config(run)
    dataset = load_dataset(config.data)
    is_test = np.isin(np.arange(len(dataset)), read_splits(find_members(run)[0])["test"])
    table = pd.DataFrame({"smiles": list(dataset.smiles), "split": np.where(is_test, "test", "train")})
    done = {line["endpoint"] for line in read_results(RESULTS_FILE) if "separate" in line}
    for t in np.argsort(np.isfinite(dataset.targets).sum(axis=0)):
        task = dataset.tasks[t]
        if task.name not in done:
            own = table.assign(label=dataset.targets[:, t]).dropna(subset="label")
            line = {"endpoint": task.name, "fold": 0, "separate": train_and_score(own, task, config)}
            append_results(RESULTS_FILE, [line])
            print(line, flush=True)


def train_and_score(table: pd.DataFrame, task: Task, config: RunConfig) -> dict:
    """Train on the rows of ``split`` train and return the scores of those of test; columns smiles, label, split."""
    train, test = (table[table["split"] == name] for name in ("train", "test"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.to_csv(folder / "train.csv", index=False)
        transform = () if task.classes else ("--transform", task.transform)
        run = Commands(folder, cores()).train(folder / "train.csv", "--targets", "label", *transform)
        predicted = graphslice.load(run, "cpu").predict(test["smiles"].tolist())
    labels = test["label"].to_numpy(np.float64)[:, None]
    return {each: score(each, "adme", [task], labels, predicted) for each in metrics_of(task)}


def metrics_of(task: Task) -> tuple[str, ...]:
    """Return the metrics of an endpoint."""
    return ("auroc", "auprc") if task.classes else ("mae", "rmse", "spearman")


def measure_rate(table: Path) -> dict:
    """Measure the rate of one thread, on distinct molecules of a table, without the start."""
    import torch

    torch.set_num_threads(1)
    smiles = pd.read_csv(table)["smiles"].drop_duplicates().sample(4000, random_state=0).tolist()
    model, found = graphslice.load("adme", "cpu"), {}
    model.predict(smiles[:200], interval=90)
    for name, interval in (("predictions", None), ("intervals", 90)):
        begin = time.process_time()
        model.predict(smiles, details=True, interval=interval)
        found[name] = round(len(smiles) / (time.process_time() - begin))
    return {"rate": found, "machine": hardware_info()["machine"]}


def adme_tables(lines: list[dict]) -> dict[str, str]:
    """Return the tables of the document by name; of several rates the last counts."""
    endpoints = pd.read_csv(ENDPOINTS, keep_default_na=False)
    rate = [line for line in lines if "rate" in line][-1]
    return {
        "adme-meanings": meaning_table(endpoints),
        "adme": score_table(lines, endpoints),
        "adme-rate": (
            f"One thread of {rate['machine']}, from SMILES, all endpoints, processor time without the start: "
            f"{rate['rate']['predictions']:,} molecules per second, {rate['rate']['intervals']:,} with intervals and "
            "`in_domain`.\n"
        ),
    }


def adme_numbers(lines: list[dict]) -> dict[str, str]:
    """Return the numbers in the text of the document by name: of endpoints, molecules, labels, megabytes and so on."""
    packed = next(line["packed"] for line in lines if "packed" in line)
    return {f"adme-{name}": f"{value:,.1f}" if name == "megabytes" else f"{value:,}" for name, value in packed.items()}


def meaning_table(endpoints: pd.DataFrame) -> str:
    """Return the table of what the endpoints mean."""
    units = endpoints["unit"].mask(endpoints["kind"] == "binary", "probability of `yes`")
    columns = ["group", "name", "description", "unit", "direction", "table", "license"]
    rows = endpoints.assign(unit=units)[columns].to_numpy().tolist()
    return markdown([["group", "endpoint", "meaning", "unit", "direction", "table", "licence"], *rows])


def fold_lines(lines: list[dict]) -> dict[str, list[dict]]:
    """The lines of the cross-validation, by endpoint."""
    folds = defaultdict(list)
    for line in lines:
        if "stack" in line:
            folds[line["endpoint"]].append(line)
    return folds


def score_table(lines: list[dict], endpoints: pd.DataFrame) -> str:
    """Return the table of scores, and sentences that summarize it."""
    folds = fold_lines(lines)
    separate = {line["endpoint"]: line["separate"] for line in lines if "separate" in line}
    rows = [["endpoint", "molecules", "score", "MAE", "`adme`, fold 1", "separate, fold 1"]]
    wins, coverages = [], []
    for name, unit, kind in zip(endpoints["name"], endpoints["unit"], endpoints["kind"], strict=True):
        own, metric = folds[name], "auroc" if kind == "binary" else "spearman"
        error = "" if kind == "binary" else f"{mean_and_std([each['stack']['mae'] for each in own], 3)} {unit}".strip()
        alone = separate.get(name, {}).get(metric)
        first = next(each["stack"][metric] for each in own if each["fold"] == 0)
        if alone is not None:
            wins.append(first >= alone)
        counts = np.array([each["molecules"] for each in own])
        coverages.append(float(np.average([each["coverage_90"] for each in own], weights=counts)))
        cells = [name, f"{counts.sum():,}", mean_and_std([each["stack"][metric] for each in own], 3), error]
        rows.append([*cells, f"{first:.3f}", "" if alone is None else f"{alone:.3f}"])
    summary = f"90% intervals and sets cover {100 * min(coverages):.0f} to {100 * max(coverages):.0f}% of the labels."
    if wins:
        summary += f" On the first fold `adme` is at least as good as the separate model on {sum(wins)} of {len(wins)}."
    return f"{markdown(rows)}\n{summary}\n"
