"""Coverage of prediction intervals and sets, compared with a forest's jackknife, and errors by distance to the training
molecules; and the tables of docs/intervals.md.

``--data DIR`` trains with the defaults on eight tables of TDC's ADMET group, each split at random and by scaffold, and
adds every result as a line to docs/benchmarks/intervals.jsonl. Results that exist are skipped.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestRegressor
from sklearn.metrics import log_loss

import graphslice
from benchmarks import results
from benchmarks.results import markdown
from benchmarks.table_methods import Commands, version
from benchmarks.table_tasks import TDC, Task
from benchmarks.tables import origin_text
from graphslice.calibration import temperature_scaled
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.evaluation.metrics import coverage, score
from graphslice.runs.run_files import OUT_OF_FOLD, read_splits
from graphslice.system.machine import hardware_info
from split_check import check_split

TASKS = (
    *("caco2_wang", "vdss_lombardo", "clearance_microsome_az", "ppbr_az"),
    *("hia_hou", "pgp_broccatelli", "herg", "bbb_martins"),
)
SPLITS = ("random", "scaffold")
LEVELS = (80, 90, 95)
#: Where the bins of the similarity of the nearest training molecule begin.
SIMILARITIES = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
_TREES = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, TASKS, "intervals.jsonl", seeds=3)


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet."""
    work = [
        (
            {"task": name, "split": split, "seed": seed},
            partial(run_and_evaluate, TDC[name], split, seed, options.data),
        )
        for seed in options.seeds
        for name in options.tasks
        for split in SPLITS
    ]
    results.run_missing(options.results, work)


def run_and_evaluate(task: Task, split: str, seed: int, data: Path) -> list[dict]:
    """Train on a table with a new split of all rows, and evaluate the predictions for the test set."""
    table = pd.read_csv(data / task.file)[["smiles", "y"]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table.to_csv(folder / "t.csv", index=False)
        options = ("--targets", "y", "--split", split, "--seed", seed, "--trainer.seed", seed)
        run = Commands(folder, 1).train(folder / "t.csv", *options)
        predictor, splits = graphslice.load(run, "cpu"), read_splits(run)
        held_out = run / OUT_OF_FOLD
        calibrated = len(pd.read_csv(held_out)) if held_out.exists() else len(splits["valid"])
    assert splits is not None and predictor.calibration is not None
    sides = np.full(len(table), "", dtype=object)
    for side, members in splits.items():
        sides[members] = side
    check_split(table["smiles"].tolist(), sides.tolist(), f"{task.name}, {split}, seed {seed}")
    rows, y = splits["test"], table["y"].to_numpy(np.float64)
    smiles, labels = table["smiles"].to_numpy()[rows].tolist(), y[rows, None]
    predictions = {level: predictor.predict(smiles, interval=level) for level in LEVELS}
    values = predictions[LEVELS[0]].values
    labelled, molecules = np.where(np.isfinite(values[:, :1]), labels, np.nan), np.arange(len(rows))
    covered = {
        str(level): coverage(prediction.interval, labelled, molecules, predictor.tasks)["y"]
        for level, prediction in predictions.items()
    }
    near = predictions[LEVELS[0]].neighbours
    line: dict[str, Any] = {"intervals": covered, "rows": {name: len(members) for name, members in splits.items()}}
    line["rows"]["valid"] = calibrated
    if task.classes:
        temperature = predictor.calibration.targets[0].temperature
        before = temperature_scaled(values, 1 / temperature)
        errors = [score("calibration_error", "", predictor.tasks, labels, probs) for probs in (before, values)]
        losses = [log_loss(labels[:, 0], probs[:, 0].astype(np.float64)) for probs in (before, values)]
        line |= {"temperature": temperature, "calibration_error": errors, "log_loss": losses}
        error = (values[:, 0] >= 0.5) != labels[:, 0]
    else:
        known = np.concatenate([splits["train"], splits.get("valid", np.empty(0, np.int64))])
        bits = fingerprints(table["smiles"])
        line["jackknife"] = _jackknife(bits[known], y[known], bits[rows], labels[:, 0], seed)
        error = np.abs(values[:, 0] - labels[:, 0])
    line["by_similarity"] = _binned(near.similarity, error.astype(np.float64))
    line["in_domain"] = _by_domain(near.in_domain, error.astype(np.float64))
    return [line | {"machine": hardware_info()["machine"], "version": version()}]


def _binned(similarity: np.ndarray, error: np.ndarray) -> list[list[float]]:
    """Of each bin of similarity the number of molecules and the sum of their errors."""
    places = np.searchsorted(np.array(SIMILARITIES), similarity, side="right") - 1
    return [[int((places == bin).sum()), float(error[places == bin].sum())] for bin in range(len(SIMILARITIES))]


def _by_domain(inside: np.ndarray, error: np.ndarray) -> list[list[float]]:
    """Of the molecules inside and of those outside how many there are, and the sum of their errors."""
    return [[int(part.sum()), float(error[part].sum())] for part in (inside, ~inside)]


def _jackknife(
    x: np.ndarray, y: np.ndarray, asked: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, dict[str, float]]:
    """Coverage and mean width of a random forest's jackknife+ after bootstrap (Kim et al. 2020, arXiv:2002.09025)."""
    forest = RandomForestRegressor(_TREES, random_state=seed, bootstrap=True).fit(x, y)
    out = np.ones((_TREES, len(x)), bool)
    for tree, sampled in zip(out, forest.estimators_samples_, strict=True):
        tree[sampled] = False
    shares = out / np.maximum(out.sum(axis=0), 1)  # of each training row, the mean of the trees without it
    on_train = np.stack([tree.predict(x) for tree in forest.estimators_])
    on_asked = np.stack([tree.predict(asked) for tree in forest.estimators_])
    residuals = np.abs(y - (shares * on_train).sum(axis=0))[:, None]
    centres = shares.T @ on_asked
    low, high = np.sort(centres - residuals, axis=0), np.sort(centres + residuals, axis=0)
    found = {}
    for level in LEVELS:
        rank = int(np.ceil((len(x) + 1) * level / 100))
        lower, upper = low[max(len(x) - rank, 0)], high[min(rank, len(x)) - 1]
        inside = (lower <= labels) & (labels <= upper)
        found[str(level)] = {"coverage": float(inside.mean()), "width": float((upper - lower).mean())}
    return found


def fingerprints(smiles: pd.Series) -> np.ndarray:
    """``uint32 [R, 2048]``: counts of Morgan fingerprints, radius 2."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    with rdBase.BlockLogs():
        return np.stack([generator.GetCountFingerprintAsNumPy(Chem.MolFromSmiles(text)) for text in smiles])


#: Lines of the results, by task and split.
Groups = dict[tuple[str, str], list[dict]]


def interval_tables(lines: Sequence[dict]) -> dict[str, str]:
    """Return the tables of the document by name."""
    groups: Groups = defaultdict(list)
    for line in lines:
        groups[line["task"], line["split"]].append(line)
    numbers, classes = (
        {key: group for key, group in groups.items() if field in group[0]} for field in ("jackknife", "temperature")
    )
    return {
        "interval-versions": origin_text(lines),
        "interval-widths": _numbers(numbers),
        "set-sizes": _classes(classes),
        "temperatures": _calibration(classes),
        "errors-by-distance": _distance([[*chain(*kind.values())] for kind in (numbers, classes)]),
    }


def _with_means(groups: Groups) -> Groups:
    """The groups, and the lines of every split, of all tasks."""
    means: Groups = {("mean", split): [] for split in sorted({split for _, split in groups})}
    for (_, split), lines in groups.items():
        means["mean", split].extend(lines)
    return groups | means


def _column(lines: Sequence[dict], part: str, level: int, name: str) -> list[float]:
    return [line[part][str(level)][name] for line in lines]


def _percent(task: str, values: Sequence[float]) -> str:
    spread = "" if task == "mean" or len(values) < 2 else f" ± {100 * np.std(values, ddof=1):.0f}"
    return f"{100 * np.mean(values):.0f}{spread}%"


def _numbers(groups: Groups) -> str:
    parts = ("intervals", "jackknife")
    heads = [f"{name}: {what}" for what in ("coverage", "width") for name in ("GraphSlice", "jackknife+")]
    rows = [["task", "split", *heads]]
    for (task, split), lines in _with_means(groups).items():
        cells = [_percent(task, _column(lines, part, 90, "coverage")) for part in parts]
        widths = [mean_and_std(_column(lines, part, 90, "width"), 2) for part in parts]
        rows.append([task, split, *cells, *(["", ""] if task == "mean" else widths)])
    return markdown(rows)


def _classes(groups: Groups) -> str:
    rows = [["task", "split", *(f"coverage at {level}%" for level in LEVELS), "classes at 90%"]]
    for (task, split), lines in _with_means(groups).items():
        cells = [_percent(task, _column(lines, "intervals", level, "coverage")) for level in LEVELS]
        rows.append([task, split, *cells, f"{np.mean(_column(lines, 'intervals', 90, 'classes')):.2f}"])
    return markdown(rows)


def _calibration(groups: Groups) -> str:
    names = ("calibration_error", "log_loss")
    rows = [["task", "split", "temperature", *(f"{name.replace('_', ' ')}: before, after" for name in names)]]
    for (task, split), lines in groups.items():
        cells = [", ".join(mean_and_std([line[name][i] for line in lines], 3) for i in (0, 1)) for name in names]
        rows.append([task, split, mean_and_std([line["temperature"] for line in lines], 2), *cells])
    return markdown(rows)


def _distance(kinds: list[list[dict]]) -> str:
    """Errors relative to the mean error of their line: a row for each bin of similarity, and inside and outside."""
    ends = [f"{low:g} to {high:g}" for low, high in zip(SIMILARITIES, [*SIMILARITIES[1:], 1], strict=True)]
    rows = [["similarity", "regression: molecules", "error", "classification: molecules", "error"]]
    for part, names in (("by_similarity", ends), ("in_domain", ["in domain", "outside"])):
        counts, errors = np.zeros((2, len(kinds), len(names)))
        for kind, lines in enumerate(kinds):
            for count, error in (np.array(line[part], float).T for line in lines):
                counts[kind] += count
                errors[kind] += error / (error.sum() / count.sum() or 1.0)
        for bin, name in enumerate(names):
            cells = zip(counts[:, bin], errors[:, bin], strict=True)
            rows.append([name, *(text for n, error in cells for text in (f"{n:,.0f}", f"{error / n:.2f}"))])
    return markdown(rows)
