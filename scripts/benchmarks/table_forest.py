"""A random forest of 500 trees on embeddings of molecules, as a command.

``python -m benchmarks.table_forest fit.csv ask.csv predictions.csv`` trains one forest for each target on the training
rows of fit.csv (other rows are not used) and predicts the rows of ask.csv. The files fit.npy and ask.npy in the same
folders hold the embeddings, one row for each row of the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

TREES = 500


def predict(
    fit: pd.DataFrame,
    ask: pd.DataFrame,
    fit_embeddings: np.ndarray,
    ask_embeddings: np.ndarray,
    classes: bool,
    seed: int,
    threads: int,
) -> pd.DataFrame:
    """Train forests on ``fit`` and return a column of predictions for each target (of classes the probability of 1)."""
    train = fit[fit["split"] == "train"]
    fit_embeddings = fit_embeddings[fit["split"] == "train"]
    predictions = pd.DataFrame({"smiles": ask["smiles"]})
    for target in fit.columns.drop(["smiles", "split"]):
        labelled = train[target].notna().to_numpy()
        kind = RandomForestClassifier if classes else RandomForestRegressor
        forest = kind(TREES, n_jobs=threads, random_state=seed)
        forest.fit(fit_embeddings[labelled], train[target].to_numpy()[labelled])
        if not classes:
            predictions[target] = forest.predict(ask_embeddings)
        elif 1 in forest.classes_:
            predictions[target] = forest.predict_proba(ask_embeddings)[:, list(forest.classes_).index(1)]
        else:
            predictions[target] = 0.0
    return predictions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("fit", "ask", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    fit, ask = pd.read_csv(options.fit), pd.read_csv(options.ask)
    embeddings = [np.load(path.with_suffix(".npy")) for path in (options.fit, options.ask)]
    predictions = predict(fit, ask, *embeddings, options.classes, options.seed, options.threads)
    predictions.to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
