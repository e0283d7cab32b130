"""Evaluate a packaged model on its test set, and add the scores to docs/results: ``table: NAME`` of docs/models.md.

    python scripts/model_card.py NAME CORPUS

CORPUS is the preprocessed dataset (of ``graphslice featurize``) with which the model was trained; the labelled
molecules of its test split are evaluated. ``python scripts/result_tables.py`` makes the table.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.results import append_results
from graphslice.data.splits import SPLITS
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor, load
from graphslice.system.machine import hardware_info

RESULTS = Path(__file__).parents[1] / "docs" / "results"
LEVEL = 90.0


def evaluate(name: str, predictor: Predictor, corpus: GraphStore) -> list[dict]:
    """Return the record of each target: scores on the molecules of the test split that have a label."""
    columns = [corpus.info.targets.index(target) for target in predictor.targets]
    labels = np.asarray(corpus.targets)[:, columns].astype(float)
    rows = np.flatnonzero((np.asarray(corpus.split) == SPLITS.index("test")) & ~np.isnan(labels).all(axis=1))
    found, labels = predictor.predict([corpus[row] for row in rows.tolist()], interval=LEVEL), labels[rows]
    covered = (found.interval.low <= labels) & (labels <= found.interval.high)
    lines = []
    for t, target in enumerate(predictor.targets):
        known = ~np.isnan(labels[:, t])
        true, errors = labels[known, t], np.abs(found.values - labels)[known, t]
        r2 = 1 - np.square(errors).sum() / np.square(true - true.mean()).sum()
        scores = {"mae": round(float(errors.mean()), 5), "r2": round(float(r2), 5), "molecules": len(true)}
        coverage = round(float(covered[known, t].mean()), 5)
        line = {"model": name, "target": target, "test": scores, "level": LEVEL, "coverage": coverage}
        lines.append(line | {"machine": hardware_info()["machine"]})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("corpus", type=Path)
    options = parser.parse_args()
    append_results(
        RESULTS / f"{options.name}.jsonl", evaluate(options.name, load(options.name), GraphStore.open(options.corpus))
    )


if __name__ == "__main__":
    main()
