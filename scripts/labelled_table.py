"""Write the labelled molecules of a corpus to a table, with the split that ``graphslice pretrain`` used.

    python scripts/labelled_table.py corpus.csv --targets gap,homo,lumo,dipole --without held.csv -o labelled.csv

The model ``gap``, and other software for comparison, is trained on this table. The split is determined by hashes of
the molecules, so test molecules of the pretraining are test molecules here. ``--answers FILE.csv`` evaluates the
predictions of a software for the test rows: a table with the column smiles and the targets. (codespell:ignore answers)
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from graphslice.chem.hashes import MoleculeHashes
from graphslice.config import GraphConfig
from graphslice.data.featurize import featurize_stream, molecule_keys
from graphslice.data.splits import SPLITS
from graphslice.pretraining.corpus import split_by_hash
from split_check import check_split

# Bin edges of the number of heavy atoms.
SIZES = (1, 10, 20, 30, 40, 10_000)


def labelled(corpus: Path, held: list[Path], targets: list[str]) -> pd.DataFrame:
    """Return the columns smiles, targets and split of the labelled molecules of a corpus, without duplicates."""
    table = pd.read_csv(corpus, low_memory=False)
    table = table[table[targets].notna().any(axis=1)].reset_index(drop=True)
    hashes, left_out = (
        keys_of_smiles(table["smiles"]),
        [keys_of_smiles(pd.read_csv(path)["smiles"]).family for path in held],
    )
    table = table.assign(identity=hashes.identity, split=np.array(SPLITS)[split_by_hash(hashes.family)])
    table = table[~np.isin(hashes.family, np.concatenate([np.empty(0, np.uint64), *left_out]))]
    return table.drop_duplicates("identity")[["smiles", *targets, "split"]]


def keys_of_smiles(smiles: pd.Series) -> MoleculeHashes:
    """Return the hashes of molecules; all SMILES must be valid."""
    store, _ = next(featurize_stream([smiles.tolist()], GraphConfig()))
    return molecule_keys(store, np.arange(len(store)))


def error_table(table: pd.DataFrame, predictions: pd.DataFrame, targets: list[str]) -> list[str]:
    """Format the mean absolute errors on the test set as a table: of all molecules, and by number of heavy atoms."""
    test = table[table["split"] == "test"].reset_index(drop=True)
    merged = test[["smiles"]].merge(predictions.drop_duplicates("smiles"), on="smiles", how="left")
    missing = merged[targets].isna().any(axis=1).sum()
    store, _ = next(featurize_stream([test["smiles"].tolist()], GraphConfig()))
    errors = (merged[targets] - test[targets]).abs().to_numpy()
    lines = [f"| heavy atoms | {' | '.join(targets)} |", "|---" * (1 + len(targets)) + "|"]
    for low, high in [(1, SIZES[-1]), *pairwise(SIZES)]:
        some = errors[(low <= store.sizes) & (store.sizes < high)]
        counts = (~np.isnan(some)).sum(axis=0)
        cells = [f"{e:.3f} ({n:,})" if n else "" for e, n in zip(np.nansum(some, axis=0) / counts, counts, strict=True)]
        lines.append(f"| {low} to {high - 1} | {' | '.join(cells)} |")
    return [*lines, "", f"{missing} of {len(test):,} rows have no prediction"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--without", nargs="*", type=Path, default=[], help="tables of molecules to exclude")
    parser.add_argument("--targets", required=True)
    parser.add_argument("-o", "--out", type=Path, required=True, help="table to write, or to read for evaluation")
    parser.add_argument("--answers", dest="predictions", type=Path, help="evaluate")  # codespell:ignore answers
    options = parser.parse_args()
    targets = options.targets.split(",")
    if options.predictions is None:
        table = labelled(options.corpus, options.without, targets)
        check_split(table["smiles"].tolist(), table["split"].tolist(), options.out.name)
        table.to_csv(options.out, index=False)
        print(table.groupby("split")[targets].count())
    else:
        print("\n".join(error_table(pd.read_csv(options.out), pd.read_csv(options.predictions), targets)))


if __name__ == "__main__":
    main()
