"""Join the tables of TDC's ADMET group and Tox21 into the one that the packaged model ``adme`` is trained on.

    python scripts/build_adme.py DATA -o adme.csv

DATA is a folder with ``tdc_admet/*.csv`` (columns smiles, y) and ``tox21.csv``. All rows are taken, whatever split
they name. Rows of the same molecule, in whatever SMILES notation, are one row: the median of its numbers, the majority
of its classes; a class without a majority is left out. The columns are the endpoints of ``adme_endpoints.csv``, and
``split`` for the final network.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.adme import ENDPOINTS
from graphslice.chem.hashes import hash_molecules
from graphslice.config import GraphConfig
from graphslice.data.featurize import parse

# Share of the molecules that select the epoch of the final network.
VALIDATION = 0.03


def labels_of(endpoints: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return all labels: columns smiles, endpoint and label."""
    tox21 = pd.read_csv(folder / "tox21.csv")
    parts = []
    for name, source in zip(endpoints["name"], endpoints["table"], strict=True):
        if source.startswith("tox21:"):
            own = tox21[["smiles", source.removeprefix("tox21:")]]
        else:
            own = pd.read_csv(folder / "tdc_admet" / f"{source}.csv")[["smiles", "y"]]
        parts.append(own.set_axis(["smiles", "label"], axis=1).dropna().assign(endpoint=name))
    return pd.concat(parts, ignore_index=True)


def join(labels: pd.DataFrame, endpoints: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each molecule, with a column for each endpoint; molecules that cannot be read are left out."""
    texts = labels["smiles"].unique().tolist()
    molecules, reasons, *_ = parse(texts, GraphConfig())
    rows = zip(texts, hash_molecules(molecules).identity, reasons, strict=True)
    identity = {text: key for text, key, reason in rows if not reason}
    labels = labels.assign(molecule=labels["smiles"].map(identity)).dropna(subset="molecule")
    grouped = labels.groupby(["molecule", "endpoint"], sort=False)["label"]
    numbers = grouped.median().unstack()
    classes = endpoints.loc[endpoints["kind"] == "binary", "name"]
    numbers[classes] = numbers[classes].where(numbers[classes] != 0.5)
    smiles = labels.drop_duplicates("molecule").set_index("molecule")["smiles"]
    table = numbers.reindex(columns=endpoints["name"]).dropna(how="all")
    table.insert(0, "smiles", smiles[table.index])
    return table.reset_index(drop=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    endpoints = pd.read_csv(ENDPOINTS)
    table = join(labels_of(endpoints, options.data), endpoints)
    valid = np.random.default_rng(0).random(len(table)) < VALIDATION
    table["split"] = np.where(valid, "valid", "train")
    table.to_csv(options.out, index=False, float_format="%.6g")
    print(f"{len(table):,} molecules, {int(np.isfinite(table[endpoints['name']].to_numpy()).sum()):,} labels")


if __name__ == "__main__":
    main()
