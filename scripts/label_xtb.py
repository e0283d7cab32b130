"""Compute GFN2-xTB quantities of the molecules of some tables, in shards; a later call goes on where one was stopped.

    pip install "graphslice[demo-labels]" && python scripts/label_xtb.py -o labels A.csv B.csv.gz ...
    python scripts/label_xtb.py -o labels A.csv B.csv.gz ... --csv labelled.csv    # what is there, as a table

The molecules are all different canonical SMILES of up to 60 heavy atoms in the columns ``smiles`` or ``mol`` of the
tables, in an order drawn once. Each gets one conformer and one single point, as ``build_demo.py`` makes them. A shard
is an ``.npz``: ``key`` (uint64, of the canonical SMILES: see :func:`key_of`, so that no molecule of a table is carried
along), ``molecule`` (float32 ``[R, 5]``: HOMO, LUMO, gap in eV, dipole in debye, energy in hartree), ``num_atoms`` and
``num_bonds`` (uint8), and one behind another in the order of the canonical SMILES ``charges`` and ``hydrogen_charges``
of the atoms and ``bond_orders`` (Wiberg), int16 in thousandths; ``failed`` (uint64) are those without labels. The table
has lists of these in columns ``charge``, ``hydrogen_charge`` and ``bond_order``, for ``graphslice train --level atom``
and ``--level bond``.
"""

import argparse
import hashlib
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by tblite when it is loaded

import numpy as np
import pandas as pd
from rdkit import Chem, RDLogger

from build_demo import HARTREE_TO_EV, SEED, Unlabelled, conformer, gap_from_orbitals, single_point

SHARD, MAX_HEAVY_ATOMS, AU_TO_DEBYE = 500, 60, 2.541746473
# In electronvolts, debye and hartree.
QUANTITIES = ("homo", "lumo", "gap", "dipole", "energy")
# In electronvolts: no molecule has frontier orbitals beyond, but a calculation that went astray can.
LOWEST, HIGHEST = -30.0, 20.0
# Columns of the table and arrays of a shard: of the atoms, of the hydrogens at each, and of the bonds.
LISTS = {"charge": "charges", "hydrogen_charge": "hydrogen_charges", "bond_order": "bond_orders"}


def key_of(canonical: str) -> int:
    """Eight bytes of the BLAKE2b hash of a canonical SMILES."""
    return int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest(), "little")


def corpus(tables: Iterable[pd.DataFrame]) -> list[str]:
    """The canonical SMILES of some tables, each once, in an order that the molecules alone decide."""
    found = set()
    for table in tables:
        for smiles in table["smiles" if "smiles" in table else "mol"].dropna():
            mol = Chem.MolFromSmiles(str(smiles))
            if mol is not None and 1 <= mol.GetNumHeavyAtoms() <= MAX_HEAVY_ATOMS:
                found.add(Chem.MolToSmiles(mol))
    order = sorted(found)
    random.Random(SEED).shuffle(order)
    return order


def label(smiles: str, seed: int = SEED) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    """Quantities of a molecule, charges of its atoms and of the hydrogens at each, bond orders; raises Unlabelled."""
    written = Chem.MolFromSmiles(smiles)
    mol = conformer(written, seed)
    result = single_point(mol)
    energies, occupations = result.get("orbital-energies"), result.get("orbital-occupations")
    gap = gap_from_orbitals(energies, occupations)
    homo = np.sort(energies)[round(float(occupations.sum()) / 2) - 1] * HARTREE_TO_EV
    dipole = float(np.linalg.norm(result.get("dipole"))) * AU_TO_DEBYE
    if not LOWEST < homo <= homo + gap < HIGHEST:
        raise Unlabelled(f"frontier orbitals at {homo:g} and {homo + gap:g} eV")
    charges, orders, atoms = result.get("charges"), result.get("bond-orders"), written.GetNumAtoms()
    hydrogens = np.zeros(atoms)
    for i in range(atoms, mol.GetNumAtoms()):
        hydrogens[mol.GetAtomWithIdx(i).GetNeighbors()[0].GetIdx()] += charges[i]
    bonds = [float(orders[b.GetBeginAtomIdx(), b.GetEndAtomIdx()].sum()) for b in written.GetBonds()]
    quantities = [homo, homo + gap, gap, dipole, float(result.get("energy"))]
    return quantities, charges[:atoms], hydrogens, np.array(bonds)


def save(path: Path, labelled: dict[str, tuple], failed: list[str]) -> None:
    """Write a shard, in one move."""
    quantities, charges, hydrogens, bonds = zip(*labelled.values(), strict=True) if labelled else ([], [], [], [])

    def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
        return np.round(1000 * np.concatenate([np.zeros(0), *parts])).astype(np.int16)

    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(
        temporary,
        key=np.array([key_of(smiles) for smiles in labelled], np.uint64),
        molecule=np.array(quantities, np.float32).reshape(-1, len(QUANTITIES)),
        num_atoms=np.array([len(c) for c in charges], np.uint8),
        num_bonds=np.array([len(b) for b in bonds], np.uint8),
        charges=joined(charges),
        hydrogen_charges=joined(hydrogens),
        bond_orders=joined(bonds),
        failed=np.array([key_of(smiles) for smiles in failed], np.uint64),
    )
    temporary.replace(path)


def json_lists(thousandths: np.ndarray, counts: np.ndarray) -> list[str]:
    """What is written of each molecule: a JSON list, of numbers one molecule's of which stand behind another's."""
    parts = np.split(thousandths.astype(np.float64) / 1000, np.cumsum(counts.astype(np.int64))[:-1])
    return [json.dumps(part.round(3).tolist()) for part in parts]


def read_labels(shards: Iterable[Path]) -> dict[int, tuple]:
    """By :func:`key_of` of a molecule its :data:`QUANTITIES`, ``float32 [5]``, and its :data:`LISTS` as JSON."""
    labels: dict[int, tuple] = {}
    for shard in shards:
        with np.load(shard) as found:
            counts = {name: found["num_bonds" if name == "bond_orders" else "num_atoms"] for name in LISTS.values()}
            lists = [json_lists(found[name], counts[name]) for name in LISTS.values()]
            rows = zip(found["molecule"], *lists, strict=True)
            labels |= dict(zip(found["key"].tolist(), rows, strict=True))
    return labels


def table_of(molecules: list[str], labels: dict[int, tuple]) -> pd.DataFrame:
    """The columns of the labels of some canonical SMILES, a row each; empty where there are none."""
    unknown = ([None] * len(QUANTITIES), *[None] * len(LISTS))
    found = [labels.get(key_of(smiles), unknown) for smiles in molecules]
    rows = [(*some[0][:-1], *some[1:]) for some in found]  # the energy is that of the number of electrons
    return pd.DataFrame(rows, columns=[*QUANTITIES[:-1], *LISTS])


def write_table(path: Path, molecules: list[str], shards: Iterable[Path]) -> int:
    """Write the labelled ones of some canonical SMILES as a table that training reads; returns how many."""
    labels = read_labels(shards)
    known = [smiles for smiles in molecules if key_of(smiles) in labels]
    table = table_of(known, labels)
    table.insert(0, "smiles", known)
    temporary = path.with_name(f".{path.name}")
    table.to_csv(temporary, index=False, float_format="%.5g")
    temporary.replace(path)
    return len(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--csv", type=Path, help="compute nothing: write the labels that are there into this table")
    arguments = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    if arguments.csv:
        shards = sorted(arguments.out.glob("*.npz"))
        if not shards:
            parser.error(f"{arguments.out} holds no shards")
        count = write_table(arguments.csv, corpus(map(pd.read_csv, arguments.tables)), shards)
        print(f"{count:,} labelled molecules", flush=True)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    done: set[int] = set()
    for shard in sorted(arguments.out.glob("*.npz")):
        with np.load(shard) as found:
            done |= {*found["key"].tolist(), *found["failed"].tolist()}
    waiting = [smiles for smiles in corpus(map(pd.read_csv, arguments.tables)) if key_of(smiles) not in done]
    print(f"{len(done):,} molecules are done, {len(waiting):,} to do", flush=True)
    for begin in range(0, len(waiting), SHARD):
        labelled: dict[str, tuple] = {}
        failed: list[str] = []
        for smiles in waiting[begin : begin + SHARD]:
            try:
                labelled[smiles] = label(smiles)
            except Unlabelled:
                failed.append(smiles)
        name = f"{hashlib.blake2b(''.join(waiting[begin : begin + SHARD]).encode(), digest_size=6).hexdigest()}.npz"
        save(arguments.out / name, labelled, failed)
        print(f"{len(labelled):,} labelled, {len(failed):,} not", flush=True)


if __name__ == "__main__":
    main()
