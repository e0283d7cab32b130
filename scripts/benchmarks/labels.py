"""Compare bounds as labels, auxiliary targets and joint models on tables of TDC's ADMET group.

``run --data DIR`` trains with the defaults in every way that is compared, and adds each result as a line to
docs/benchmarks/labels.jsonl; what is there already is not done again. Every result renews docs/labels.md too, as
``render`` does alone. The test rows of TDC are read once for each line, and nothing was chosen by them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

import graphslice
from benchmarks.results import add_result, read_results
from benchmarks.table_methods import Commands, commit
from benchmarks.table_tasks import METRICS, TDC
from graphslice.chem.molecule_hash import hash_molecules
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse
from graphslice.hardware import hardware_info
from split_check import check_split

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "labels.jsonl"
_PERCENTILE = 80


@dataclass(frozen=True)
class Comparison:
    """Ways of using the labels of a table.

    Attributes:
        table: name of the table of the target.
        metrics: names in :data:`METRICS`; the first decides.
        ways: by name, the function that writes the training rows and further options: it takes the rows with labels
            ``y``, a folder, and the folder of the data.
        log: the labels are replaced by their decimal logarithm.
    """

    table: str
    metrics: tuple[str, ...]
    ways: dict[str, Callable[[pd.DataFrame, Path, Path], list[str]]]
    log: bool = False


def _true(rows: pd.DataFrame, folder: Path, data: Path) -> list[str]:
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


def _censoring(way: str) -> Callable[[pd.DataFrame, Path, Path], list[str]]:
    return lambda rows, folder, data: _true(_censored(rows, way), folder, data)


def _with_auxiliary(table: str) -> Callable[[pd.DataFrame, Path, Path], list[str]]:
    def write(rows: pd.DataFrame, folder: Path, data: Path) -> list[str]:
        other = pd.read_csv(data / TDC[table].file)[["smiles", "y"]].rename(columns={"y": table})
        other.to_csv(folder / "auxiliary.csv", index=False)
        return [*_true(rows, folder, data), "--auxiliary", table, "--auxiliary-file", str(folder / "auxiliary.csv")]

    return write


def _joint(tables: tuple[str, ...], log: bool) -> Callable[[pd.DataFrame, Path, Path], list[str]]:
    def write(rows: pd.DataFrame, folder: Path, data: Path) -> list[str]:
        joined = rows
        for table in tables:
            other = pd.read_csv(data / TDC[table].file)[["smiles", "y"]]
            other = other.groupby("smiles")["y"].mean() if log else other.groupby("smiles")["y"].first()
            other = np.log10(other) if log else other
            joined = joined.merge(other.rename(table).reset_index(), on="smiles", how="outer")
        joined = joined[~_families(joined["smiles"]).isin(_families(_test_smiles(rows, data)))]
        _true(joined.assign(split="train"), folder, data)
        return ["--targets", ",".join(["y", *tables])]

    return write


def _test_smiles(rows: pd.DataFrame, data: Path) -> pd.Series:
    """The SMILES of the test rows of the table that the training rows are of."""
    for name in itertools.chain(*_JOINT):
        table = pd.read_csv(data / TDC[name].file)
        if rows["smiles"].tolist() == table.loc[table["split"] != "test", "smiles"].tolist():
            return table.loc[table["split"] == "test", "smiles"]
    raise ValueError("the rows are those of no table")


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
} | {
    f"auxiliary: {target}": Comparison(
        target, TDC[target].metrics, {"alone": _true, f"with {other}": _with_auxiliary(other)}
    )
    for target, other in {
        "clearance_microsome_az": "clearance_hepatocyte_az",
        "caco2_wang": "lipophilicity_astrazeneca",
        "cyp2c9_substrate_carbonmangels": "cyp3a4_substrate_carbonmangels",
    }.items()
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
    """The options of the command."""
    actions = parser.add_subparsers(dest="action", required=True)
    begin = actions.add_parser("run", help="train, and keep every result")
    begin.add_argument("--data", type=Path, required=True, help="a folder with tdc_admet/*.csv")
    begin.add_argument("--comparisons", nargs="+", choices=COMPARISONS, default=list(COMPARISONS), metavar="NAME")
    begin.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    begin.add_argument("--threads", type=int, default=1)
    render = actions.add_parser("render", help="make docs/labels.md")
    for subparser in (begin, render):
        subparser.add_argument("--results", type=Path, default=RESULTS)


def run(options: argparse.Namespace) -> None:
    """Run what has no result yet, or render the results."""
    if options.action == "run":
        for seed in options.seeds:
            for name in options.comparisons:
                for way in COMPARISONS[name].ways:
                    _attempt(options, name, way, seed)
    write_document(options.results)


def _attempt(options: argparse.Namespace, name: str, way: str, seed: int) -> None:
    key = {"comparison": name, "way": way, "seed": seed}
    compute = partial(train_and_score, COMPARISONS[name], way, seed, options.data, options.threads)
    if (line := add_result(options.results, key, compute)) is not None:
        write_document(options.results)
        print(json.dumps(line), flush=True)


def train_and_score(comparison: Comparison, way: str, seed: int, data: Path, threads: int) -> dict:
    """Train on the training rows in one way, and score the predictions of the test rows by their true labels."""
    table = pd.read_csv(data / TDC[comparison.table].file)
    if comparison.log:
        table["y"] = np.log10(table["y"])
    check_split(table["smiles"].tolist(), table["split"].tolist(), comparison.table)
    train, test = (table[(table["split"] == "test") == side].reset_index(drop=True) for side in (False, True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands(folder, threads)
        extra = comparison.ways[way](train[["smiles", "y"]].assign(split="train"), folder, data)
        commands.run(
            *(sys.executable, "-m", "graphslice", "train", "--dataset", folder / "fit.csv"),
            *("--seed", seed, "--trainer.seed", seed, "--cache", folder / "cache", "--out", folder / "run"),
            *(extra if "--targets" in extra else ["--targets", "y", *extra]),
        )
        model = graphslice.load(folder / "run", "cpu")
        predicted = np.asarray(model.predict(test["smiles"].tolist()), np.float64).reshape(len(test), -1)[:, 0]
    known = np.isfinite(predicted)
    labels = test["y"].to_numpy(np.float64)
    scores = {metric: float(METRICS[metric][0](labels[known], predicted[known])) for metric in comparison.metrics}
    machine = {"machine": hardware_info()["machine"], "version": f"graphslice {graphslice.__version__} {commit()}"}
    return {"scores": scores, "predicted": int(known.sum()), "cpu_seconds": round(commands.cpu_seconds, 1)} | machine


def write_document(results: Path) -> None:
    """Make docs/labels.md of docs/benchmarks/labels.jsonl."""
    results.parent.with_name("labels.md").write_text(rendered(read_results(results)), encoding="utf-8")


def rendered(lines: list[dict]) -> str:
    """The document of all results."""
    parts = [_HEAD]
    for name, comparison in COMPARISONS.items():
        own = [line for line in lines if line["comparison"] == name]
        if own:
            parts.append(f"## {name[:1].upper()}{name[1:]}\n\n{_table(own, comparison)}")
    versions = sorted({f"{line['version']} on {line['machine']}" for line in lines})
    return "\n\n".join([*parts, f"Versions: {'; '.join(versions)}."]) + "\n"


def _table(lines: list[dict], comparison: Comparison) -> str:
    first = next(iter(comparison.ways))
    head = " | ".join([*comparison.metrics, f"difference in {comparison.metrics[0]} from {first}", "CPU s"])
    rows = [f"| labels | {head} |", "|---" * (len(comparison.metrics) + 3) + "|"]
    for way in comparison.ways:
        scores = {line["seed"]: line["scores"] for line in lines if line["way"] == way}
        reference = {line["seed"]: line["scores"] for line in lines if line["way"] == first}
        if not scores:
            continue
        cells = [_mean_and_deviation([score[metric] for score in scores.values()]) for metric in comparison.metrics]
        metric, shared = comparison.metrics[0], sorted(scores.keys() & reference.keys())
        gains = np.array([scores[seed][metric] - reference[seed][metric] for seed in shared])
        seconds = np.median([line["cpu_seconds"] for line in lines if line["way"] == way])
        rows.append(f"| {way} | {' | '.join(cells)} | {'' if way == first else _difference(gains)} | {seconds:.0f} |")
    return "\n".join(rows)


def _mean_and_deviation(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f} (1)"
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f} ({len(values)})"


def _difference(gains: np.ndarray) -> str:
    """The mean of paired differences, with their 95% interval by Student's distribution."""
    if len(gains) < 2:
        return f"{gains.mean():+.3f}" if len(gains) else ""
    half = student.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5
    return f"{gains.mean():+.3f} ({gains.mean() - half:+.3f} to {gains.mean() + half:+.3f})"


_HEAD = f"""# Bounds and auxiliary targets

What censored labels, auxiliary targets and joint models contribute. Made by `python scripts/benchmark.py labels render`
from the lines of [labels.jsonl](benchmarks/labels.jsonl), which `python scripts/benchmark.py labels run --data DIR`
adds to; do not edit.

`graphslice train` with its defaults on the training rows of TDC's tables, evaluated on the true labels of the test
rows. Scores are mean ± standard deviation over seeds, with the number of seeds in brackets. Differences are paired by
seed, with their 95% interval. All seeds have the same rows, so the interval covers the randomness of training, not the
choice of the test molecules.

- **Bounds**: training labels above their {_PERCENTILE}th percentile become bounds (`>x`), labels with the value x, or
  are left out. The labels of vdss_lombardo are decimal logarithms.
- **Auxiliary**: the other table is given as `--auxiliary-file`, without the compounds of the test rows.
- **Joint**: one model of the targets of several tables: the decimal logarithms of the labels of four regression tables,
  or the classes of three classification tables, without the compounds of the test rows of the evaluated target."""
