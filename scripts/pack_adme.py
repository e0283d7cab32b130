"""Make the packaged model ``adme`` of two runs, measure it by cross-validation, and write docs/benchmarks/adme.jsonl.

    python scripts/pack_adme.py runs/folds runs/final --approved DATA/clintox.csv

docs/adme.md has the commands of both runs.

The network is that of the final run. Each endpoint with few molecules also has a kernel machine, if its weight in the
stack is worth its bytes. Weights and calibration stand on the out-of-fold predictions of the first run: every molecule
is predicted by a network and kernel machines that were trained without its fold. Scores are of these predictions too,
and each score of a fold has weights and calibration that were chosen on the other folds.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

import graphslice
from benchmarks.adme import ENDPOINTS, RESULTS_FILE, metrics_of
from benchmarks.results import append_results, read_results
from graphslice.calibration import PARTS_STD, Calibration, fit_calibration
from graphslice.data.datamodule import MoleculeData
from graphslice.data.featurize import graph_input_rows
from graphslice.data.loaders import load_dataset
from graphslice.evaluation.metrics import score
from graphslice.inference.predictor import Predictor, difficulty_estimates, load, nearest_training_molecules
from graphslice.runs.checkpoint import read_checkpoint, save_checkpoint
from graphslice.runs.run_files import find_members, read_config, read_splits
from graphslice.stacking import Stacking
from graphslice.stacking.kernel import KernelMachine, fit_kernel
from graphslice.stacking.stacking import combine_predictions, fit_weights, weighted_std
from graphslice.tasks import Task, each_target
from graphslice.training.resolve import load_molecule_data
from graphslice.training.stack import fit_domain
from pack_model import WEIGHTS, elements, strip_checkpoint

# A kernel machine of more molecules costs more time and bytes than the network.
MAX_KERNEL_ROWS = 2_000
# With less weight than this a kernel machine is left out.
MIN_WEIGHT = 0.2
# Labels of an endpoint that calibrate it.
MAX_CALIBRATION_LABELS = 1_000
# Percentiles of the predictions for approved drugs that are stored.
PERCENTILES = np.arange(101)


@dataclass
class OutOfFold:
    """Predictions of R molecules for T endpoints, of one output each, by models that were trained without them."""

    fold: np.ndarray  # int64 [R]
    network: np.ndarray  # float32 [R, T]
    kernel: np.ndarray  # float32 [R, T], nan where an endpoint has none
    similarity: np.ndarray  # float32 [R], to the nearest training molecule


def predict_out_of_fold(run: Path, data: MoleculeData, x: np.ndarray) -> OutOfFold:
    """Predict every molecule with the network, and with kernel machines, of the fold that tests on it."""
    labels, tasks = data.dataset.targets, data.dataset.tasks
    shape = len(labels), len(tasks)
    found = OutOfFold(
        np.zeros(shape[0], np.int64),
        np.zeros(shape, np.float32),
        np.full(shape, np.nan, np.float32),
        np.zeros(shape[0], np.float32),
    )
    for number, folder in enumerate(find_members(run)):
        rows = np.sort(read_splits(folder)["test"])
        rest = np.setdiff1d(np.arange(len(labels)), rows)
        model = load(folder, "cpu")
        found.fold[rows], found.network[rows] = number, model.predict_uncalibrated(data.store, rows)[0]
        found.similarity[rows] = nearest_training_molecules(fit_domain(data, rest), data.store, rows)[0]
        for t, machine in enumerate(fit_kernels(x[rest], labels[rest], tasks)):
            if machine is not None:
                found.kernel[rows, t] = machine.predict(x[rows])[:, 0]
        print(f"fold {number + 1}", flush=True)
    return found


def fit_kernels(x: np.ndarray, labels: np.ndarray, tasks: Sequence[Task]) -> list[KernelMachine | None]:
    """Fit a kernel machine to each endpoint that has few labels."""
    few = np.isfinite(labels).sum(axis=0) <= MAX_KERNEL_ROWS
    return [
        fit_kernel(x, labels[:, t], task.kind, len(task.classes), 0) if few[t] else None for t, task in enumerate(tasks)
    ]


def choose_weights(found: OutOfFold, labels: np.ndarray, tasks: Sequence[Task], rows: np.ndarray) -> np.ndarray:
    """Return the weights of network and kernel machine for each endpoint, ``float64 [2, T]``, chosen on some rows."""
    weights = np.stack([np.ones(len(tasks)), np.zeros(len(tasks))])
    own = np.flatnonzero(np.isfinite(found.kernel).any(axis=0))
    parts = [found.network[rows][:, own], found.kernel[rows][:, own]]
    chosen = fit_weights(parts, labels[rows][:, own], [tasks[t] for t in own])
    chosen[:, chosen[1] < MIN_WEIGHT] = [[1.0], [0.0]]
    weights[:, own] = chosen
    return weights


def stacked(found: OutOfFold, weights: np.ndarray, tasks: Sequence[Task], rows: np.ndarray) -> list[np.ndarray]:
    """Return the weighted mean ``float32 [R, T]`` and the standard deviation of the parts, of some rows."""
    parts = [found.network[rows], np.nan_to_num(found.kernel[rows])]
    return [combine_predictions(parts, weights, tasks), weighted_std(parts, weights, tasks)]


def calibrated(
    found: OutOfFold, values: np.ndarray, spread: np.ndarray, data: MoleculeData, rows: np.ndarray, train: np.ndarray
) -> Calibration:
    """Calibrate the stack on out-of-fold predictions of some rows."""
    labels, rng = data.dataset.targets[rows].copy(), np.random.default_rng(0)
    for column in labels.T:
        known = np.flatnonzero(np.isfinite(column))
        column[rng.permutation(known)[MAX_CALIBRATION_LABELS:]] = np.nan
    used = np.isfinite(labels).any(axis=1)
    similarity, ones = found.similarity[rows][used], np.ones(used.sum(), np.int64)
    difficulty = difficulty_estimates({PARTS_STD: spread[used]}, similarity, ones, labels.shape[1])
    return fit_calibration(
        values[used], difficulty, labels[used], np.arange(used.sum()), data.dataset.tasks, fit_domain(data, train)
    )


def cross_validate(found: OutOfFold, data: MoleculeData) -> list[dict]:
    """Score network and stack on each fold, with weights and calibration of the other folds."""
    labels, tasks, lines = data.dataset.targets, data.dataset.tasks, []
    for fold in range(found.fold.max() + 1):
        test, other = np.flatnonzero(found.fold == fold), np.flatnonzero(found.fold != fold)
        weights = choose_weights(found, labels, tasks, other)
        calibration = calibrated(found, *stacked(found, weights, tasks, other), data, other, other)
        values, spread = stacked(found, weights, tasks, test)
        ones = np.ones(len(test), np.int64)
        estimates = difficulty_estimates({PARTS_STD: spread}, found.similarity[test], ones, len(tasks))
        low, high = calibration.prediction_intervals(values, estimates, tasks, 0.9)
        sets = calibration.prediction_sets(calibration.probabilities(values, tasks), tasks, 0.9)
        for t, task, _ in each_target(tasks):
            known = np.isfinite(labels[test, t])
            true = labels[test[known], t]
            line = {"endpoint": task.name, "fold": fold, "molecules": int(known.sum())}
            for name, predicted in (("network", found.network[test]), ("stack", values)):
                arrays = labels[test][:, [t]][known], predicted[:, [t]][known]
                line[name] = {each: score(each, "adme", [task], *arrays) for each in metrics_of(task)}
            if task.classes:
                line["coverage_90"] = float(sets[task.name][known, true.astype(int)].mean())
            else:
                line["coverage_90"] = float(((low[known, t] <= true) & (true <= high[known, t])).mean())
            lines.append(line)
    return lines


def described(tasks: Sequence[Task], model: Predictor, approved: list[str]) -> list[Task]:
    """Add units, descriptions, groups, directions, and the percentiles of approved drugs to the endpoints."""
    endpoints = pd.read_csv(ENDPOINTS, keep_default_na=False).set_index("name")
    values = model.predict(approved)
    values = values[np.isfinite(values).all(axis=1)]
    found = []
    for t, task, _ in each_target(tasks):
        row = endpoints.loc[task.name]
        text = f"{row['description']}; {row['direction']}" if row["direction"] else row["description"]
        reference = tuple(np.percentile(values[:, t], PERCENTILES).astype(np.float32).tolist())
        classes = ("no", "yes") if task.classes else ()
        unit = "" if task.classes else row["unit"]
        named = {"group": row["group"], "better": row["direction"].partition(" ")[0], "description": text}
        found.append(replace(task, classes=classes, unit=unit, reference=reference, **named))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folds", type=Path, help="run with --folds")
    parser.add_argument("final", type=Path, help="run that was trained on all rows")
    parser.add_argument("--approved", type=Path, required=True, help="table with columns smiles and FDA_APPROVED")
    options = parser.parse_args()
    config = read_config(options.folds)
    dataset = load_dataset(config.data)
    checkpoint = read_checkpoint(options.final)
    data = load_molecule_data(config, dataset, Console(stderr=True)).with_tasks(checkpoint.tasks)
    labels, tasks, rows = data.dataset.targets, data.dataset.tasks, np.arange(len(dataset))
    x = graph_input_rows(data.store, rows)
    found = predict_out_of_fold(options.folds, data, x)
    lines = cross_validate(found, data)
    weights = choose_weights(found, labels, tasks, rows)
    values, spread = stacked(found, weights, tasks, rows)
    calibration = calibrated(found, values, spread, data, rows, rows)
    names = tuple(dataset.smiles[row] for row in calibration.domain.rows.tolist())
    calibration = replace(calibration, domain=replace(calibration.domain, smiles=names))
    # Without weight, a machine is a constant that is never evaluated.
    machines = [
        machine
        if machine is not None and weight > 0
        else fit_kernel(x[:1], np.zeros(1), task.kind, len(task.classes), 0)
        for machine, weight, task in zip(fit_kernels(x, labels, tasks), weights[1], tasks, strict=True)
    ]
    approved = pd.read_csv(options.approved)
    approved = approved.loc[approved["FDA_APPROVED"] == 1, "smiles"].tolist()
    machines = [replace(one, descriptors=one.descriptors.astype(np.float16).astype(np.float32)) for one in machines]
    made = replace(
        strip_checkpoint(replace(checkpoint, stacking=None), bare=True),
        stacking=Stacking({"kernel": machines}, weights),
        calibration=calibration,
        extra={"elements": elements(data.store)},
    )
    made.tasks = described(tasks, Predictor(made, "cpu"), approved)
    save_checkpoint(made, WEIGHTS / "adme.safetensors")
    packed = {
        "endpoints": len(tasks),
        "kernels": int((weights[1] > 0).sum()),
        "megabytes": (WEIGHTS / "adme.safetensors").stat().st_size / 1e6,
        "molecules": len(dataset),
        "labels": int(np.isfinite(labels).sum()),
        "approved": len(approved),
    }
    lines = [{"version": f"graphslice {graphslice.__version__}", **line} for line in [*lines, {"packed": packed}]]
    lines += [line for line in read_results(RESULTS_FILE) if "separate" in line]
    RESULTS_FILE.unlink(missing_ok=True)
    append_results(RESULTS_FILE, lines)
    print(packed)
    print({task.name: round(weight, 2) for task, weight in zip(tasks, weights[1], strict=True) if weight})


if __name__ == "__main__":
    main()
