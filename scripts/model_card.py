"""Evaluate a packaged model on its test set and write the results into docs/models.md.

    python scripts/model_card.py NAME CORPUS

CORPUS is the preprocessed dataset (of ``graphslice featurize``) with which the model was trained; the labelled
molecules of its test split are evaluated. The text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rdkit import Chem

from benchmarks.results import append_results, markdown
from graphslice.data.splits import SPLITS
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor, load
from graphslice.system.machine import hardware_info
from marks import fill_document

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
LEVEL = 90.0
# Bin edges of the number of heavy atoms, and the minimal number of molecules for a cell of a table.
SIZES, LEAST = (1, 10, 20, 30, 40), 20


@dataclass
class Evaluation:
    """Evaluation of T targets on R molecules of the test split.

    Attributes:
        targets: T names.
        labels: ``float64 [R, T]``, nan where unknown.
        errors: ``float64 [R, T]``, absolute.
        held: ``bool [R, T]``, True if a label lies within its prediction interval.
        learned: ``float64 [N, T]``, the labels of the training split.
        sizes: ``int [R]``, numbers of heavy atoms.
        elements: the element symbols of each molecule.
        seconds: time of the prediction.
    """

    targets: list[str]
    labels: np.ndarray
    errors: np.ndarray
    held: np.ndarray
    learned: np.ndarray
    sizes: np.ndarray
    elements: list[set[str]]
    seconds: float


def evaluate(predictor: Predictor, corpus: GraphStore) -> Evaluation:
    """Evaluate a model on the molecules of a corpus's test split that have a label for one of its targets."""
    places = [corpus.info.targets.index(name) for name in predictor.targets]
    labels, split = np.asarray(corpus.targets)[:, places].astype(float), np.asarray(corpus.split)
    rows = np.flatnonzero((split == SPLITS.index("test")) & ~np.isnan(labels).all(axis=1))
    molecules = [corpus[row] for row in rows.tolist()]
    began = time.perf_counter()
    found = predictor.predict(molecules, interval=LEVEL)
    seconds = time.perf_counter() - began
    return Evaluation(
        predictor.targets,
        labels[rows],
        np.abs(found.values - labels[rows]),
        (found.interval.low <= labels[rows]) & (labels[rows] <= found.interval.high),
        labels[split == SPLITS.index("train")],
        corpus.sizes[rows],
        [{symbol(number) for number in molecule.atoms[:, 0].tolist()} for molecule in molecules],
        seconds,
    )


def symbol(number: int) -> str:
    """Return the symbol of an element from its index in OGB."""
    return Chem.GetPeriodicTable().GetElementSymbol(number + 1) if number < 118 else "other"


def target_table(found: Evaluation) -> str:
    """Return a table with one row per target."""
    held = f"coverage of {LEVEL:.0f}% intervals"
    rows: list[list[object]] = [
        ["target", "training labels", "test labels", "MAE", "MAE of the median label", "R2", held]
    ]
    for t, record in enumerate(records("", found)):
        learned, labels = (part[~np.isnan(part)] for part in (found.learned[:, t], found.labels[:, t]))
        guess, scores = np.abs(labels - np.median(learned)).mean(), record["test"]
        numbers = (f"{score:.3f}" for score in (scores["mae"], guess, scores["r2"]))
        counts = (f"{len(learned):,}", f"{len(labels):,}")
        rows.append([record["target"], *counts, *numbers, f"{100 * record['coverage']:.1f}%"])
    return markdown(rows)


def group_table(found: Evaluation) -> str:
    """Return a table of mean errors by molecule size and by element."""
    groups = {
        f"{low} to {high - 1} heavy atoms": (low <= found.sizes) & (found.sizes < high) for low, high in pairwise(SIZES)
    }
    groups[f"{SIZES[-1]} heavy atoms and more"] = found.sizes >= SIZES[-1]
    for element in sorted(set().union(*found.elements)):
        groups[f"with {element}"] = np.array([element in those for those in found.elements])
    rows = [["molecules", *found.targets]]
    for name, inside in groups.items():
        known = ~np.isnan(found.labels) & inside[:, None]
        counts = known.sum(axis=0)
        if counts.max() >= LEAST:
            errors = np.where(known, found.errors, 0).sum(axis=0) / np.maximum(counts, 1)
            cells = [f"{e:.3f} ({n:,})" if n >= LEAST else "" for e, n in zip(errors, counts, strict=True)]
            rows.append([name, *cells])
    return markdown(rows)


def records(name: str, found: Evaluation) -> Iterator[dict]:
    """Yield the record of each target for ``docs/results``."""
    for t, target in enumerate(found.targets):
        known = ~np.isnan(found.labels[:, t])
        labels, errors = found.labels[known, t], found.errors[known, t]
        r2 = 1 - np.square(errors).sum() / np.square(labels - labels.mean()).sum()
        scores = {"mae": round(float(errors.mean()), 5), "r2": round(float(r2), 5), "molecules": len(labels)}
        coverage = round(float(found.held[known, t].mean()), 5)
        line = {"model": name, "target": target, "test": scores, "level": LEVEL, "coverage": coverage}
        yield line | {"machine": hardware_info()["machine"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="add JSON lines to a file, and leave the document as it is")
    options = parser.parse_args()
    found = evaluate(load(options.name), GraphStore.open(options.corpus))
    caption = f"MAE by size and by element, with the number of molecules in brackets, where they are at least {LEAST}:"
    text = f"{target_table(found)}\n{caption}\n\n{group_table(found)}"
    print(text)
    print(f"{len(found.labels) / found.seconds:,.0f} molecules a second, with intervals and nearest neighbours")
    if options.out:
        append_results(options.out, records(options.name, found))
    else:
        fill_document(DOCUMENT, {options.name: text}.get)


if __name__ == "__main__":
    main()
