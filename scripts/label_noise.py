"""Label noise of GFN2-xTB over conformers: ``python scripts/label_noise.py A.csv B.csv.gz [--count 400]``.

For a fixed random sample of the molecules of each table, two conformers are generated as in ``label_xtb.py`` and
labelled. Mean and median of their absolute difference are printed. The mean absolute error of a model that does not
see conformers is at least half of the mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import RDLogger

from build_demo import SEED, Unlabelled
from label_xtb import QUANTITIES, corpus, label

# Seed of the second conformer; RDKit's conformers of the seeds 0 and 1 are the same.
OTHER = 7


def differences(molecules: list[str], count: int) -> np.ndarray:
    """Return absolute differences ``float64 [count, 4]`` for the first one-fragment molecules with both labels."""
    rows: list[np.ndarray] = []
    for smiles in molecules:
        if len(rows) == count:
            break
        if "." in smiles:
            continue
        try:
            both = [np.array(label(smiles, seed)[0][:-1]) for seed in (SEED, OTHER)]
        except Unlabelled:
            continue
        rows.append(np.abs(both[0] - both[1]))
    return np.array(rows).reshape(-1, len(QUANTITIES) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=400, help="molecules of each table (default: %(default)s)")
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    print("| table | molecules | " + " | ".join(f"{name}: mean, median" for name in QUANTITIES[:-1]) + " |")
    print("|---" * (1 + len(QUANTITIES)) + "|")
    for table in options.tables:
        rows = differences(corpus([pd.read_csv(table)]), options.count)
        cells = [f"{np.mean(column):.3f}, {np.median(column):.3f}" for column in rows.T]
        print(f"| {table.name} | {len(rows)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
