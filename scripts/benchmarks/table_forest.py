"""A random forest of 500 trees on embeddings of molecules, as a command.

``python -m benchmarks.table_forest fit.csv ask.csv answers.csv``: trains on the rows of fit.csv whose split is train
(the others are not used), one forest for each target, and answers for the rows of ask.csv. Beside the tables lie
fit.npy and ask.npy with the embeddings, a row for each of theirs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

TREES = 500


def answers(
    fit: pd.DataFrame, ask: pd.DataFrame, known: np.ndarray, asked: np.ndarray, classes: bool, seed: int, threads: int
) -> pd.DataFrame:
    """A column for each target of ``fit``, numbers, or the probability of class 1, of what is read of each row."""
    train = fit[fit["split"] == "train"]
    known = known[fit["split"] == "train"]
    found = pd.DataFrame({"smiles": ask["smiles"]})
    for target in fit.columns.drop(["smiles", "split"]):
        labelled = train[target].notna().to_numpy()
        kind = RandomForestClassifier if classes else RandomForestRegressor
        forest = kind(TREES, n_jobs=threads, random_state=seed)
        forest.fit(known[labelled], train[target].to_numpy()[labelled])
        if not classes:
            found[target] = forest.predict(asked)
        elif 1 in forest.classes_:
            found[target] = forest.predict_proba(asked)[:, list(forest.classes_).index(1)]
        else:
            found[target] = 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("fit", "ask", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    fit, ask = pd.read_csv(options.fit), pd.read_csv(options.ask)
    known, asked = (np.load(path.with_suffix(".npy")) for path in (options.fit, options.ask))
    found = answers(fit, ask, known, asked, options.classes, options.seed, options.threads)
    found.to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
