"""The usual baseline: a random forest on Morgan fingerprints (2,048 bits, radius 2, 500 trees).

    python scripts/baseline_forest.py                         # the embedded demo set
    python scripts/baseline_forest.py my.csv --target logp    # any CSV with smiles and split columns

Prints the test MAE of the forest on the same split that ``graphslice train`` uses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestRegressor

DEMO = Path(__file__).parents[1] / "data" / "demo.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--target", default="gap_ev")
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    RDLogger.DisableLog("rdApp.*")
    table = pd.read_csv(arguments.csv)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    molecules = [Chem.MolFromSmiles(smiles) for smiles in table["smiles"]]
    keep = np.array([mol is not None for mol in molecules])
    x = np.stack([generator.GetFingerprintAsNumPy(mol) for mol in molecules if mol is not None])
    y, split = table[arguments.target].to_numpy()[keep], table["split"].to_numpy()[keep]

    forest = RandomForestRegressor(arguments.trees, n_jobs=-1, random_state=arguments.seed)
    forest.fit(x[split == "train"], y[split == "train"])
    error = np.abs(forest.predict(x[split == "test"]) - y[split == "test"]).mean()
    print(f"random forest, {arguments.trees} trees: test MAE {error:.4f} on {(split == 'test').sum()} molecules")


if __name__ == "__main__":
    main()
