"""Sample molecules from large tables so that rare atom environments are kept, for ``graphslice pretrain``.

    python scripts/sample_molecules.py TABLE [TABLE ...] -o sample.csv --existing corpus.csv --times 10

The molecules are read in random order. One is kept if it has a Morgan environment of radius 2 that fewer than --times
molecules have so far, of those kept and of those of --existing. So common skeletons stop adding molecules, and rare
ones are all kept. Tables have a column ``smiles`` (any case). The elements and sizes of what was kept are printed, with
those of the tables of --existing.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator

RADIUS, SEED = 2, 0


def read_smiles(tables: Iterable[Path]) -> list[str]:
    """The SMILES of some tables, each text once."""
    found: dict[str, None] = {}
    for path in tables:
        head = pd.read_csv(path, nrows=0).columns
        column = next((name for name in head if name.lower() == "smiles"), None)
        if column is None:
            raise SystemExit(f"{path} has no column smiles")
        found |= dict.fromkeys(pd.read_csv(path, usecols=[column])[column].dropna())
    return [*found]


def environments(smiles: Iterable[str]) -> Iterator[tuple[str, Chem.Mol, list[int]]]:
    """Each SMILES that RDKit can read, its molecule and the numbers of its Morgan environments of radius up to 2."""
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS)
    with rdBase.BlockLogs():
        for text in smiles:
            mol = Chem.MolFromSmiles(text)
            if mol is not None:
                yield text, mol, [*generator.GetSparseFingerprint(mol).GetOnBits()]


class Census:
    """Counts elements and sizes of molecules."""

    def __init__(self) -> None:
        self.molecules, self.elements, self.sizes = 0, Counter(), []

    def add(self, mol: Chem.Mol) -> None:
        self.molecules += 1
        self.elements.update({atom.GetSymbol() for atom in mol.GetAtoms()})
        self.sizes.append(mol.GetNumAtoms())

    def __str__(self) -> str:
        low, middle, high = np.quantile(self.sizes, [0.05, 0.5, 0.95]) if self.sizes else (0, 0, 0)
        shares = ", ".join(f"{name} {count / self.molecules:.2%}" for name, count in self.elements.most_common(16))
        return (
            f"{self.molecules:,} molecules, {len(self.elements)} elements ({shares}), heavy atoms {low:.0f} to "
            f"{high:.0f} (5 to 95%), median {middle:.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--existing", type=Path, nargs="*", default=[], help="tables of molecules that exist already")
    parser.add_argument("--times", type=int, default=10, help="molecules that an environment is wanted in")
    options = parser.parse_args()
    seen: Counter[int] = Counter()
    present, kept, sample = Census(), Census(), []
    for _, mol, found in environments(read_smiles(options.existing)):
        present.add(mol)
        seen.update(found)
    smiles = read_smiles(options.tables)
    np.random.default_rng(SEED).shuffle(smiles)
    for text, mol, found in environments(smiles):
        if any(seen[number] < options.times for number in found):
            seen.update(found)
            kept.add(mol)
            sample.append(text)
    pd.DataFrame({"smiles": sample}).to_csv(options.out, index=False)
    print(f"there already: {present}\nkept of {len(smiles):,}: {kept}")


if __name__ == "__main__":
    main()
