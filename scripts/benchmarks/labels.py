"""Compare bounds as labels and joint models on tables of TDC's ADMET group; makes docs/labels.md.

``--data DIR`` trains with the defaults in every way that is compared, and adds each result as a line to
docs/benchmarks/labels.jsonl. Results that exist are skipped. The test rows of TDC are read once for each line, and
nothing was chosen by them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import graphslice
from benchmarks import results
from benchmarks.results import markdown, run_missing
from benchmarks.table_methods import Commands, version
from benchmarks.table_tasks import METRICS, TDC
from graphslice.chem.hashes import hash_molecules
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.evaluation.metrics import mean_interval
from graphslice.system.machine import hardware_info
from split_check import check_split

_PERCENTILE = 80


@dataclass(frozen=True)
class Comparison:
    """Ways of using the labels of a table.

    Attributes:
        table: name of the table of the target.
        metrics: names in :data:`METRICS`; the first decides.
        ways: by name, the function that writes the training rows and returns further options: it takes the rows with
            labels ``y``, the SMILES of the test rows, a folder, and the folder of the data.
        log: the labels are replaced by their decimal logarithm.
    """

    table: str
    metrics: tuple[str, ...]
    ways: dict[str, Callable[[pd.DataFrame, pd.Series, Path, Path], list[str]]]
    log: bool = False


def _true(rows: pd.DataFrame, test: pd.Series, folder: Path, data: Path) -> list[str]:
    rows.to_csv(folder / "fit.csv", index=False)
    return []


def _censored(rows: pd.DataFrame, way: str) -> pd.DataFrame:
    """Replace the labels above a percentile by bounds, by the value of the bound, or leave out their rows."""
    limit = np.percentile(rows["y"], _PERCENTILE)
    above = rows["y"] > limit
    if way == "left out":
        return rows[~above]
    text = f">{limit:.6g}" if way == "bounds" else f"{limit:.6g}"
    return rows.assign(y=rows["y"].map("{:.6g}".format).mask(above, text))


def _censoring(way: str) -> Callable[[pd.DataFrame, pd.Series, Path, Path], list[str]]:
    return lambda rows, test, folder, data: _true(_censored(rows, way), test, folder, data)


def _joint(tables: tuple[str, ...], log: bool) -> Callable[[pd.DataFrame, pd.Series, Path, Path], list[str]]:
    def write(rows: pd.DataFrame, test: pd.Series, folder: Path, data: Path) -> list[str]:
        joined = rows
        for table in tables:
            other = pd.read_csv(data / TDC[table].file)[["smiles", "y"]]
            other = other.groupby("smiles")["y"].mean() if log else other.groupby("smiles")["y"].first()
            other = np.log10(other) if log else other
            joined = joined.merge(other.rename(table).reset_index(), on="smiles", how="outer")
        joined = joined[~_families(joined["smiles"]).isin(_families(test))]
        _true(joined.assign(split="train"), test, folder, data)
        return ["--targets", ",".join(["y", *tables])]

    return write


def _families(smiles: pd.Series) -> pd.Series:
    return pd.Series(hash_molecules(parse(smiles.tolist(), GraphConfig())[0]).family, index=smiles.index)


# Tables of which one model learns all targets: logarithms of numbers, and classes.
_NUMBERS = ("half_life_obach", "vdss_lombardo", "clearance_hepatocyte_az", "clearance_microsome_az")
_CLASSES = tuple(f"{enzyme}_substrate_carbonmangels" for enzyme in ("cyp2c9", "cyp2d6", "cyp3a4"))
_JOINT = (_NUMBERS, _CLASSES)
_BOUNDS = {"true labels": _true} | {way: _censoring(way) for way in ("bounds", "as value", "left out")}
COMPARISONS = {
    "bounds: caco2_wang": Comparison("caco2_wang", ("MAE", "Spearman"), _BOUNDS),
    "bounds: vdss_lombardo": Comparison("vdss_lombardo", ("MAE", "Spearman"), _BOUNDS, log=True),
}
COMPARISONS |= {
    f"joint: {target}": Comparison(
        target,
        ("Spearman", "MAE") if tables is _NUMBERS else TDC[target].metrics,
        {"alone": _true, "joint": _joint(tuple(name for name in tables if name != target), tables is _NUMBERS)},
        log=tables is _NUMBERS,
    )
    for tables in _JOINT
    for target in tables
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, list(COMPARISONS), "labels.jsonl")
    parser.add_argument("--threads", type=int, default=1)


def run(options: argparse.Namespace) -> None:
    """Run the trainings that have no result yet."""
    work = [
        (
            {"comparison": name, "way": way, "seed": seed},
            partial(train_and_score, COMPARISONS[name], way, seed, options.data, options.threads),
        )
        for seed in options.seeds
        for name in options.tasks
        for way in COMPARISONS[name].ways
    ]
    run_missing(options.results, work)


def train_and_score(comparison: Comparison, way: str, seed: int, data: Path, threads: int) -> list[dict]:
    """Train on the training rows in one way, and score the predictions of the test rows by their true labels."""
    table = pd.read_csv(data / TDC[comparison.table].file)
    if comparison.log:
        table["y"] = np.log10(table["y"])
    check_split(table["smiles"].tolist(), table["split"].tolist(), comparison.table)
    train, test = (table[(table["split"] == "test") == side].reset_index(drop=True) for side in (False, True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder, threads)
        extra = comparison.ways[way](train[["smiles", "y"]].assign(split="train"), test["smiles"], folder, data)
        targets = () if "--targets" in extra else ("--targets", "y")
        run = commands.train(folder / "fit.csv", "--seed", seed, "--trainer.seed", seed, *targets, *extra)
        model = graphslice.load(run, "cpu")
        predicted = np.asarray(model.predict(test["smiles"].tolist()), np.float64).reshape(len(test), -1)[:, 0]
    known = np.isfinite(predicted)
    labels = test["y"].to_numpy(np.float64)
    scores = {metric: float(METRICS[metric][0](labels[known], predicted[known])) for metric in comparison.metrics}
    line = {"scores": scores, "predicted": int(known.sum()), "cpu_seconds": round(commands.cpu_seconds, 1)}
    return [line | {"machine": hardware_info()["machine"], "version": version()}]


def label_sections(lines: list[dict]) -> str:
    """Return a section for each comparison, and the versions."""
    parts = []
    for name, comparison in COMPARISONS.items():
        own = [line for line in lines if line["comparison"] == name]
        if own:
            parts.append(f"## {name[:1].upper()}{name[1:]}\n\n{_table(own, comparison)}")
    versions = sorted({f"{line['version']} on {line['machine']}" for line in lines})
    return "\n".join([*parts, f"Versions: {'; '.join(versions)}.\n"])


def _table(lines: list[dict], comparison: Comparison) -> str:
    first, metric = next(iter(comparison.ways)), comparison.metrics[0]
    rows = [["labels", *comparison.metrics, f"difference in {metric} from {first}", "CPU s"]]
    scores = {way: {line["seed"]: line["scores"] for line in lines if line["way"] == way} for way in comparison.ways}
    for way, own in scores.items():
        if not own:
            continue
        cells = [f"{mean_and_std([s[name] for s in own.values()], 3)} ({len(own)})" for name in comparison.metrics]
        shared = sorted(own.keys() & scores[first].keys())
        gains = np.array([own[seed][metric] - scores[first][seed][metric] for seed in shared])
        seconds = np.median([line["cpu_seconds"] for line in lines if line["way"] == way])
        rows.append([way, *cells, "" if way == first else _difference(gains), f"{seconds:.0f}"])
    return markdown(rows)


def _difference(gains: np.ndarray) -> str:
    """The mean of paired differences, with their 95% interval."""
    if len(gains) < 2:
        return f"{gains.mean():+.3f}" if len(gains) else ""
    low, high = mean_interval(gains)
    return f"{gains.mean():+.3f} ({low:+.3f} to {high:+.3f})"
