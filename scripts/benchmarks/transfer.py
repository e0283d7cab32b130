"""Score pretrained networks on the training rows of TDC's tables; makes a table of docs/log.md.

A linear probe on the embeddings (ridge or logistic regression, the penalty chosen on the other folds), and the network
fine-tuned alone, both with five scaffold folds. The test rows are not read. ``--starts`` names runs of ``graphslice
pretrain``; several runs with one name are its pretrainings, of which the table shows the mean.
"""

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import graphslice
from benchmarks import results
from benchmarks.results import run_missing
from benchmarks.table_methods import Commands
from benchmarks.table_tasks import METRICS, TDC, Task
from graphslice.chem.hashes import hash_scaffolds
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse
from graphslice.runs.run_files import read_metrics

_FOLDS = 5
PROBED = (
    *("lipophilicity_astrazeneca", "solubility_aqsoldb", "ppbr_az", "ames", "cyp2d6_veith", "caco2_wang"),
    *("half_life_obach", "clearance_microsome_az", "herg", "bbb_martins", "cyp2d6_substrate_carbonmangels"),
)
FINE_TUNED = ("caco2_wang", "half_life_obach", "herg")
_LOGARITHMS = ("half_life_obach", "clearance_microsome_az")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    results.add_arguments(parser, PROBED, "transfer.jsonl", seeds=1)
    parser.add_argument("--starts", nargs="+", required=True, metavar="NAME=RUN", help="pretrained runs")


def run(options: argparse.Namespace) -> None:
    """Compute the scores that are not in the file of results."""
    runs = [start.split("=", 1) for start in options.starts]
    if len({(name, Path(path).name) for name, path in runs}) < len(runs):
        raise SystemExit("the runs of a name need folders of different names")
    work = [
        (
            {"start": name, "run": Path(path).name, "measure": measure, "table": table, "seed": seed},
            partial(score, path, TDC[table], options.data, seed),
        )
        for name, path in runs
        for measure, score, tables in (("probe", probe, PROBED), ("fine-tuned", fine_tune, FINE_TUNED))
        for table in tables
        if table in options.tasks
        for seed in options.seeds
    ]
    run_missing(options.results, work)


def probe(start: str, task: Task, data: Path, seed: int) -> list[dict]:
    """Fit a linear model to embeddings; score the predictions of the held-out folds, averaged over the folds."""
    rows, labels = training_rows(task, data)
    embeddings = graphslice.load(start, "cpu").embed(rows["smiles"].tolist())
    known = np.isfinite(embeddings).all(axis=1)
    embeddings, labels = embeddings[known], labels[known]
    scaffolds = hash_scaffolds(parse(rows["smiles"][known].tolist(), GraphConfig())[0])
    scores = []
    for train, test in GroupKFold(_FOLDS, shuffle=True, random_state=seed).split(embeddings, labels, scaffolds):
        if task.classes:
            head = LogisticRegressionCV(
                Cs=np.logspace(-4, 0, 5), l1_ratios=(0,), scoring="neg_log_loss", use_legacy_attributes=False
            )
        else:
            head = RidgeCV(np.logspace(0, 4, 9))
        model = make_pipeline(StandardScaler(), head).fit(embeddings[train], labels[train])
        predicted = model.predict_proba(embeddings[test])[:, 1] if task.classes else model.predict(embeddings[test])
        scores.append(METRICS[task.metrics[0]][0](labels[test], predicted))
    return _lines(task, scores)


def fine_tune(start: str, task: Task, data: Path, seed: int) -> list[dict]:
    """Fine-tune the network without base models; score each of its folds."""
    rows, _ = training_rows(task, data)
    with tempfile.TemporaryDirectory() as name:
        commands = Commands(Path(name), 1)
        rows.to_csv(path := Path(name) / "rows.csv", index=False)
        options = ("--folds", _FOLDS, "--split", "scaffold", "--trainer.baselines", "off", "--init-from", start)
        out = commands.train(path, *options, "--trainer.metric", task.metrics[0].lower(), "--trainer.seed", seed)
        members = read_metrics(out)["members"]
    return _lines(task, [member["test"] for member in members.values()])


def training_rows(task: Task, data: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Return SMILES and labels without the test rows, and the labels to learn (logarithms of times and rates)."""
    table = pd.read_csv(data / task.file)
    rows = table.loc[table["split"] != "test", ["smiles", "y"]].reset_index(drop=True)
    labels = rows["y"].to_numpy(np.float64)
    return rows, np.log10(labels) if task.name in _LOGARITHMS else labels


def _lines(task: Task, scores: Sequence[float]) -> list[dict]:
    return [{"metric": task.metrics[0], "score": round(float(np.mean(scores)), 4)}]
