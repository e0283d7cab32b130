"""Count the molecules that stand on more than one side of a split: ``python scripts/split_check.py TABLE.csv ...``.

Every script that reads the split of a benchmark calls :func:`check_split`, which prints one line on stderr. With
``-o docs/results/splits.jsonl`` the counts are also written as one line a table.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase

from graphslice.chem.hashes import hash_molecules
from graphslice.chem.molecule import read_smiles

_SIDES = ("train", "valid", "test")


@dataclass(frozen=True)
class SplitOverlap:
    """Numbers of molecules and families (``graphslice.chem.hashes``) in several parts of a split."""

    molecules: int  # canonical SMILES in several parts
    families: int
    test_molecules: int  # test rows whose canonical SMILES is in train or valid
    test_families: int  # test rows whose family is there
    test_rows: int

    def describe(self) -> str:
        """One sentence."""
        if not self.families:
            return "no molecule and no family stands on several sides of the split"
        counts = f"canonical SMILES {self.molecules:,}, families {self.families:,}"
        test = f"{self.test_molecules:,} and {self.test_families:,} of {self.test_rows:,}"
        return f"on several sides of the split: {counts}; test rows that share theirs with train or valid: {test}"


def check_split(smiles: Sequence[str], split: Sequence[str], name: str) -> SplitOverlap:
    """Count the molecules and families in several parts of a split, and print a line about the data on stderr."""
    sides = np.asarray(pd.Series(np.asarray(split, dtype=object)).replace("val", "valid"), dtype=object)
    arrays, reasons, _ = read_smiles(list(smiles))
    used = np.array([reason is None for reason in reasons], bool) & np.isin(sides, _SIDES)
    with rdBase.BlockLogs():
        canonical = [Chem.CanonSmiles(text) for text, use in zip(smiles, used, strict=True) if use]
    sides, family = sides[used], hash_molecules(arrays).family[used]
    molecules, test_molecules = _on_several_sides(np.array(canonical, dtype=object), sides)
    families, test_families = _on_several_sides(family, sides)
    found = SplitOverlap(molecules, families, test_molecules, test_families, int((sides == "test").sum()))
    print(f"{name}: {found.describe()}", file=sys.stderr, flush=True)
    return found


def _on_several_sides(keys: np.ndarray, sides: np.ndarray) -> tuple[int, int]:
    """How many keys stand on several sides, and how many rows of the test set have the key of a row outside it."""
    table = pd.DataFrame({"key": keys, "side": sides})
    several = table.groupby("key")["side"].nunique() > 1
    outside = table.loc[table["side"] != "test", "key"]
    return int(several.sum()), int(table.loc[table["side"] == "test", "key"].isin(outside).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files with the columns smiles and split")
    parser.add_argument(
        "-o", "--out", type=Path, help="a file of JSON lines, in which those of the tables are replaced"
    )
    options = parser.parse_args()
    lines = []
    for path in options.tables:
        table = pd.read_csv(path, usecols=["smiles", "split"])
        found = check_split(table["smiles"].tolist(), table["split"].tolist(), path.name)
        lines.append(json.dumps({"table": path.name.split(".")[0], "rows": len(table), **asdict(found)}))
    if options.out:
        names = {json.loads(line)["table"] for line in lines}
        kept = options.out.read_text().splitlines() if options.out.exists() else []
        lines = [line for line in kept if json.loads(line)["table"] not in names] + lines
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
