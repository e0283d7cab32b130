"""Put the molecules of many tables, and what has been computed of them, into one for ``graphslice pretrain``.

    python scripts/build_corpus.py DATA -o corpus.csv --labels data/xtb --held held.csv

DATA is a folder with tables of MoleculeNet and TDC's ADMET group (``tdc_admet/``), the former ``zinc12k.csv`` and
``qm9_xtbgap.csv.gz``, as far as they are there; the demo's molecules are added. Of all these only the SMILES are read,
but for the HOMO-LUMO gaps of QM9's molecules by GFN2-xTB, which are computed and not measured. Written are
canonical SMILES with ``homo``, ``lumo``, ``gap`` (eV) and ``dipole`` (debye) where ``label_xtb.py`` has them in the
folder of --labels, and lists of the charges of the atoms, of the hydrogens at each and of the bonds' orders
(``charge``, ``hydrogen_charge``, ``bond_order``); and to --held the molecules that the demo and QM9 validate and test
with, for ``graphslice pretrain --without``.
"""

import argparse
from pathlib import Path

import pandas as pd
from rdkit import Chem, RDLogger

from label_xtb import corpus, read_labels, table_of
from split_check import check_split

DEMO = Path(__file__).parents[1] / "data" / "demo.csv"
QM9 = "qm9_xtbgap.csv.gz"
MOLECULE_NET = ("esol", "freesolv", "lipo", "bbbp", "bace", "clintox", "tox21", "sider", "hiv")


def tables(folder: Path) -> list[Path]:
    """The tables of molecules that drugs are, or are looked for among."""
    known = {*MOLECULE_NET, "zinc12k"}
    found = [path for path in sorted(folder.glob("*.csv*")) if path.name.split(".")[0] in known]
    return found + [path for path in sorted((folder / "tdc_admet").glob("*.csv")) if path.stem != "leaderboard"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True, help="the folder of the shards of label_xtb.py")
    parser.add_argument("--held", type=Path, required=True)
    options = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    demo, small = pd.read_csv(DEMO), pd.read_csv(options.data / QM9)
    smiles = corpus([*map(pd.read_csv, tables(options.data)), demo[demo["split"] == "train"]])
    labels = read_labels(sorted(options.labels.glob("*.npz")))
    of_qm9 = small[small["split"] != "test"].reset_index()
    drugs, qm9 = (table_of(known, labels) for known in (smiles, [Chem.CanonSmiles(text) for text in of_qm9["smiles"]]))
    qm9["gap"] = qm9["gap"].fillna(of_qm9["gap_ev"])  # of another conformer, so without HOMO and LUMO
    drugs.insert(0, "smiles", smiles)
    qm9.insert(0, "smiles", of_qm9["smiles"])
    table = pd.concat([drugs, qm9])
    table.to_csv(options.out, index=False, float_format="%.5g")
    held = pd.concat([demo[demo["split"] != "train"]["smiles"], small[small["split"] == "test"]["smiles"]])
    held.to_csv(options.held, index=False)
    # What they share, ``graphslice pretrain --without`` leaves out.
    sides = ["train"] * len(table) + ["test"] * len(held)
    check_split([*table["smiles"], *held], sides, f"{options.out.name} and {options.held.name}")
    print(
        f"{len(table):,} molecules, {table['gap'].notna().sum():,} gaps, {table['homo'].notna().sum():,} of the others"
    )


if __name__ == "__main__":
    main()
