"""Compute the labels of the embedded demo set: GFN2-xTB HOMO-LUMO gaps of 4,999 real molecules.

The molecules are RDKit's own ``Data/NCI/first_5K.smi`` (public NCI compounds). Each gets one
ETKDG conformer relaxed with MMFF94, then a GFN2-xTB single point at its formal charge with
``tblite``. The gap is the LUMO energy minus the HOMO energy in eV.

    pip install "graphslice[demo-labels]" && python scripts/build_demo.py -o data/demo.csv

Two files are written: the CSV (``smiles``, ``gap_ev``, ``split``) and, in the same folder, a JSON report
that counts every excluded molecule, by reason.
"""

import argparse
import collections
import json
import os
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one molecule a process: read by tblite when it is loaded

import numpy as np
import pandas as pd
from rdkit import Chem, RDConfig, RDLogger
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

HARTREE_TO_EV = 27.211386245988
ANGSTROM_TO_BOHR = 1.0 / 0.529177210903
SEED = 20240229
MAX_ATOMS = 150  # with hydrogens
LOWEST_GAP_EV, HIGHEST_GAP_EV = 0.05, 20.0


class Unlabelled(Exception):
    """Why a molecule gets no label."""


def conformer(mol: Chem.Mol, seed: int = SEED) -> Chem.Mol:
    """One ETKDG conformer with explicit hydrogens, relaxed with MMFF94."""
    if any(atom.GetAtomicNum() == 0 for atom in mol.GetAtoms()):
        raise Unlabelled("wildcard atom")
    mol = Chem.AddHs(mol)
    if mol.GetNumAtoms() > MAX_ATOMS:
        raise Unlabelled(f"more than {MAX_ATOMS} atoms with hydrogens")
    if not rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        raise Unlabelled("MMFF94 has no parameters for it")
    parameters = rdDistGeom.ETKDGv3()
    parameters.randomSeed = seed
    parameters.maxIterations = 20
    if rdDistGeom.EmbedMolecule(mol, parameters) != 0:
        raise Unlabelled("ETKDG found no conformer")
    if rdForceFieldHelpers.MMFFOptimizeMolecule(mol, mmffVariant="MMFF94", maxIters=1000) < 0:
        raise Unlabelled("MMFF94 could not be set up")
    return mol


def gap_from_orbitals(energies: np.ndarray, occupations: np.ndarray) -> float:
    """HOMO-LUMO gap in eV of a closed shell: orbital energies in hartree, occupations 0 to 2."""
    order = np.argsort(energies)
    energies, occupations = energies[order], occupations[order]
    occupied = round(float(occupations.sum()) / 2)
    if occupied == 0 or occupied >= len(energies):
        raise Unlabelled("no virtual orbital")
    if abs(occupations[occupied - 1] - 2) > 0.1 or occupations[occupied] > 0.1:
        raise Unlabelled("degenerate: the frontier orbitals are fractionally occupied")
    gap = float(energies[occupied] - energies[occupied - 1]) * HARTREE_TO_EV
    if not LOWEST_GAP_EV <= gap <= HIGHEST_GAP_EV:
        raise Unlabelled(f"gap outside {LOWEST_GAP_EV}-{HIGHEST_GAP_EV} eV")
    return gap


def single_point(mol: Chem.Mol) -> Any:
    """Results of ``tblite`` for a conformer by GFN2-xTB at its formal charge; raises Unlabelled."""
    from tblite.interface import Calculator

    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    charge = Chem.GetFormalCharge(mol)
    if (numbers.sum() - charge) % 2:
        raise Unlabelled("odd number of electrons: no closed shell")
    try:
        positions = mol.GetConformer().GetPositions() * ANGSTROM_TO_BOHR
        calculator = Calculator("GFN2-xTB", numbers, positions, charge=float(charge))
        calculator.set("verbosity", 0)
        return calculator.singlepoint()
    except RuntimeError as error:
        raise Unlabelled("GFN2-xTB did not converge") from error


def label(smiles: str) -> tuple[str, float | None, str]:
    """(SMILES, gap in eV or None, reason if None)."""
    RDLogger.DisableLog("rdApp.*")
    try:
        mol = Chem.MolFromSmiles(smiles)
        if mol is None:
            raise Unlabelled("RDKit does not read the SMILES")
        result = single_point(conformer(mol))
        return smiles, gap_from_orbitals(result.get("orbital-energies"), result.get("orbital-occupations")), ""
    except Unlabelled as reason:
        return smiles, None, str(reason)


def split_of(rows: int) -> list[str]:
    """80 / 10 / 10 at random, the same for the same number of rows."""
    names = ["valid"] * (rows // 10) + ["test"] * (rows // 10)
    names += ["train"] * (rows - len(names))
    random.Random(SEED).shuffle(names)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("data/demo.csv"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    source = Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi"
    smiles = [line.split()[0] for line in source.read_text().splitlines() if line.strip()]
    reasons: collections.Counter[str] = collections.Counter()
    rows, seen = [], set()
    with ProcessPoolExecutor(arguments.workers) as pool:
        for text, gap, reason in pool.map(label, smiles, chunksize=16):
            if gap is None:
                reasons[reason] += 1
                continue
            canonical = Chem.MolToSmiles(Chem.MolFromSmiles(text))
            if canonical in seen:  # the same molecule must not stand in two splits
                reasons["same molecule as an earlier row"] += 1
                continue
            seen.add(canonical)
            rows.append((text, f"{gap:.4f}"))

    temporary = arguments.out.with_suffix(".tmp")
    pd.DataFrame(rows, columns=["smiles", "gap_ev"]).assign(split=split_of(len(rows))).to_csv(temporary, index=False)
    temporary.replace(arguments.out)
    report = {"molecules": len(smiles), "labelled": len(rows), "left_out": dict(reasons.most_common())}
    arguments.out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
