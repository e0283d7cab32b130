"""How much labels of GFN2-xTB depend on the conformer: ``python scripts/label_noise.py A.csv B.csv.gz [--count 400]``.

Of some molecules of each table, drawn once, two conformers are made as ``label_xtb.py`` makes one, and labelled.
Printed is how much the two differ, in the mean and in the median. A model that does not see conformers errs by at least
half of the mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rdkit import RDLogger

from build_demo import SEED, Unlabelled
from label_xtb import QUANTITIES, corpus, label

# RDKit's conformers of the seeds 0 and 1 are the same.
OTHER = 7


def differences(molecules: list[str], count: int) -> np.ndarray:
    """``float64 [count, 4]``, of the first molecules that have both labels and are one fragment."""
    found: list[np.ndarray] = []
    for smiles in molecules:
        if len(found) == count:
            break
        if "." in smiles:
            continue
        try:
            both = [np.array(label(smiles, seed)[0][:-1]) for seed in (SEED, OTHER)]
        except Unlabelled:
            continue
        found.append(np.abs(both[0] - both[1]))
    return np.array(found).reshape(-1, len(QUANTITIES) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=400, help="molecules of each table (default: %(default)s)")
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    print("| table | molecules | " + " | ".join(f"{name}: mean, median" for name in QUANTITIES[:-1]) + " |")
    print("|---" * (1 + len(QUANTITIES)) + "|")
    for table in options.tables:
        found = differences(corpus([table]), options.count)
        cells = [f"{np.mean(one):.3f}, {np.median(one):.3f}" for one in found.T]
        print(f"| {table.name} | {len(found)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
