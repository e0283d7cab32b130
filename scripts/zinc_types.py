"""ZINC molecules with the features of the benchmark ZINC-12k: 28 types of atoms and the order of the bonds.

``python scripts/zinc_types.py zinc.csv -o zinc-types.arrow`` writes a store that ``graphslice train`` and
``compare`` read. A type is an element with its charge and, where that is unusual, its hydrogens; bonds are single,
double or triple, the rings Kekulé's. The first of the nine features holds the type and the others nothing, or with
``--perceive`` what RDKit perceives in that graph alone: degrees, hydrogens, hybridization, rings, aromatic atoms and
bonds, conjugated bonds. Predictions of SMILES by a model trained on it are void. The script takes any table and does
not make it the benchmark's: that needs its molecules, its split and its target (penalised logP with a ring term, each
part normalised).
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from rdkit import Chem

from graphslice.chem.features import ATOM_FEATURES, BOND_FEATURES, molecule_features
from graphslice.chem.hashes import hash_molecules
from graphslice.chem.molecule import MolArrays, MolGraph, smiles_to_graph
from graphslice.chem.parse import canonical_ranks
from graphslice.data.rows import parse_splits
from graphslice.data.store import StoreInfo, record_batch
from split_check import check_split

ORDERS = (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE)


def atom_type(atom: Chem.Atom) -> tuple[str, int, int]:
    """Return element, charge and number of hydrogens (only of charged atoms, phosphorus and carbon stereocentres)."""
    tagged = atom.GetSymbol() == "C" and atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED
    with_hydrogens = atom.GetFormalCharge() != 0 or atom.GetSymbol() == "P" or tagged
    return atom.GetSymbol(), atom.GetFormalCharge(), atom.GetTotalNumHs() if with_hydrogens else 0


def restricted(smiles: str, types: dict[tuple, int]) -> MolGraph:
    graph, mol = smiles_to_graph(smiles), Chem.MolFromSmiles(smiles)
    mol = Chem.RenumberAtoms(mol, np.argsort(canonical_ranks(mol)).tolist())
    numbers = [types.setdefault(atom_type(atom), len(types)) for atom in mol.GetAtoms()]
    Chem.Kekulize(mol, clearAromaticFlags=True)
    atoms, words = np.zeros_like(graph.atoms), []
    atoms[:, 0] = numbers
    for a, b in graph.bonds.tolist():
        words.append((ORDERS.index(mol.GetBondBetweenAtoms(a, b).GetBondType()), 0, 0))
    return MolGraph(atoms, graph.bonds, np.array(words, np.uint8).reshape(-1, 3))


def perceived(graph: MolGraph, types: list[tuple[str, int, int]]) -> MolGraph:
    """Return a restricted graph with the features that RDKit perceives in the molecule of its types and bond orders.

    A label of stereochemistry is none of them, as the graph does not have it.
    """
    mol = Chem.RWMol()
    for number in graph.atoms[:, 0].tolist():
        element, charge, hydrogens = types[number]
        atom = Chem.Atom(element)
        atom.SetFormalCharge(charge)
        atom.SetNumExplicitHs(hydrogens)
        mol.AddAtom(atom)
    for (a, b), order in zip(graph.bonds.tolist(), graph.bond_features[:, 0].tolist(), strict=True):
        mol.AddBond(a, b, ORDERS[order])
    Chem.SanitizeMol(mol)
    atoms, bonds, bond_features = molecule_features(mol)
    atoms[:, 0] = graph.atoms[:, 0]
    atoms[:, list(ATOM_FEATURES).index("chirality")] = 0
    bond_features[:, list(BOND_FEATURES).index("stereo")] = 0
    return MolGraph(atoms, bonds, bond_features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="columns smiles, score and split")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--perceive", action="store_true", help="add the features that RDKit perceives in the graph")
    options = parser.parse_args()
    table = pd.read_csv(options.csv)
    check_split(table["smiles"].tolist(), table["split"].tolist(), options.csv.name)
    types: dict[tuple, int] = {}
    graphs = [restricted(smiles, types) for smiles in table["smiles"]]
    if options.perceive:
        graphs = [perceived(graph, list(types)) for graph in graphs]
    schema = StoreInfo(source=options.csv.name, targets=("score",)).schema()
    split = parse_splits(table["split"].tolist(), "split")
    targets = table["score"].to_numpy(float)[:, None]
    arrays = MolArrays.from_graphs(graphs)
    # Without SMILES, which would give a model more than the features of the benchmark.
    rows = record_batch(schema, arrays, [None] * len(graphs), None, targets, split, keys=hash_molecules(arrays))
    with pa.OSFile(str(options.out), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(rows)
    print(f"{options.out}: {len(graphs):,} molecules, {len(types)} types of atoms")


if __name__ == "__main__":
    main()
