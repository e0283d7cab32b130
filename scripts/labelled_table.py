"""Write the labelled molecules of a corpus to a table, with the split that ``graphslice pretrain`` used.

    python scripts/labelled_table.py corpus.csv --targets gap,homo,lumo,dipole --without held.csv -o labelled.csv

The model ``gap``, and other software for comparison, is trained on this table. The split is determined by hashes of
the molecules, so test molecules of the pretraining are test molecules here.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from graphslice.chem.hashes import MoleculeHashes
from graphslice.config import GraphConfig
from graphslice.data.featurize import molecule_keys, parse
from graphslice.data.splits import SPLITS
from graphslice.data.store import GraphStore
from graphslice.pretraining.corpus import split_by_hash
from split_check import check_split


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
    store = GraphStore.from_arrays(*parse(smiles.tolist(), GraphConfig())[:2])
    return molecule_keys(store, np.arange(len(store)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--without", nargs="*", type=Path, default=[], help="tables of molecules to exclude")
    parser.add_argument("--targets", required=True)
    parser.add_argument("-o", "--out", type=Path, required=True, help="table to write")
    options = parser.parse_args()
    targets = options.targets.split(",")
    table = labelled(options.corpus, options.without, targets)
    check_split(table["smiles"].tolist(), table["split"].tolist(), options.out.name)
    table.to_csv(options.out, index=False)
    print(table.groupby("split")[targets].count())


if __name__ == "__main__":
    main()
