"""The usual baseline: a random forest on Morgan fingerprints (2,048 bits, radius 2, 500 trees).

    python scripts/baseline_forest.py                         # the embedded demo set
    python scripts/baseline_forest.py my.csv --target logp    # any CSV with smiles and split columns

Prints the test MAE of the forest on the same split that ``graphslice train`` uses.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestRegressor

from benchmarks.results import append_results
from graphslice.system.machine import hardware_info
from split_check import check_split

DEMO = Path(__file__).parents[1] / "data" / "demo.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--target", default="gap_ev")
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, help="a file that gets the result as a JSON line")
    arguments = parser.parse_args()

    RDLogger.DisableLog("rdApp.*")
    table = pd.read_csv(arguments.csv)
    check_split(table["smiles"].tolist(), table["split"].tolist(), arguments.csv.name)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    molecules = [Chem.MolFromSmiles(smiles) for smiles in table["smiles"]]
    keep = np.array([mol is not None for mol in molecules])
    x = np.stack([generator.GetFingerprintAsNumPy(mol) for mol in molecules if mol is not None])
    y, split = table[arguments.target].to_numpy()[keep], table["split"].to_numpy()[keep]

    begin = time.perf_counter()
    forest = RandomForestRegressor(arguments.trees, n_jobs=-1, random_state=arguments.seed)
    forest.fit(x[split == "train"], y[split == "train"])
    seconds = round(time.perf_counter() - begin)
    errors = {side: np.abs(forest.predict(x[split == side]) - y[split == side]) for side in ("valid", "test")}
    mae = {side: {"mae": round(float(found.mean()), 5)} for side, found in errors.items() if len(found)}
    count = len(errors["test"])
    print(f"random forest, {arguments.trees} trees: test MAE {mae['test']['mae']:.4f} on {count} molecules")
    if arguments.out:
        line = {"model": "random forest on Morgan fingerprints", "dataset": arguments.csv.stem, "seed": arguments.seed}
        line |= {"seconds": seconds, **mae, "machine": hardware_info()["machine"]}
        append_results(arguments.out, [line])


if __name__ == "__main__":
    main()
