"""RDKit descriptors (2D) and Morgan counts, as additional input of a model.

The definition of each kind is fixed: a model has a weight for every descriptor, and may be used with another version
of RDKit than it was trained with. A changed definition needs a new kind with a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from rdkit import Chem

from graphslice.chem.parse import (
    MAX_ATOMS,
    MoleculeError,
    canonical_ranks,
    parse_molecule,
    rdkit_messages_blocked,
    reparse_canonical,
)

# The largest magnitude of an RDKit descriptor.
_LARGEST = 1e6
_MORGAN_BITS, _MORGAN_RADIUS = 2048, 2

# RDKit's descriptors, which are the same in every version since 2023.9, except
# - Ipc and AvgIpc: their coefficients grow exponentially with the molecule and take n^4 steps;
# - qed: a function of eight of these and an alert list, which took a fifth of the total time;
# - NumHAcceptors, SPS, fr_unbrch_alkane and fr_prisulfonamd: their definition changed in later versions.
_PLAIN = """
    MolWt HeavyAtomMolWt ExactMolWt NumValenceElectrons NumRadicalElectrons MaxPartialCharge MinPartialCharge
    MaxAbsPartialCharge MinAbsPartialCharge FpDensityMorgan1 FpDensityMorgan2 FpDensityMorgan3 BalabanJ BertzCT
    Chi0 Chi0n Chi0v Chi1 Chi1n Chi1v Chi2n Chi2v Chi3n Chi3v Chi4n Chi4v HallKierAlpha Kappa1 Kappa2 Kappa3
    LabuteASA TPSA FractionCSP3 HeavyAtomCount NHOHCount NOCount NumAliphaticCarbocycles NumAliphaticHeterocycles
    NumAliphaticRings NumAromaticCarbocycles NumAromaticHeterocycles NumAromaticRings NumHDonors NumHeteroatoms
    NumRotatableBonds NumSaturatedCarbocycles NumSaturatedHeterocycles NumSaturatedRings RingCount
"""
_FRAGMENTS = """
    Al_COO Al_OH Al_OH_noTert ArN Ar_COO Ar_N Ar_NH Ar_OH COO COO2 C_O C_O_noCOO C_S HOCCN Imine NH0 NH1 NH2 N_O
    Ndealkylation1 Ndealkylation2 Nhpyrrole SH aldehyde alkyl_carbamate alkyl_halide allylic_oxid amide amidine
    aniline aryl_methyl azide azo barbitur benzene benzodiazepine bicyclic diazo dihydropyridine epoxide ester
    ether furan guanido halogen hdrzine hdrzone imidazole imide isocyan isothiocyan ketone ketone_Topliss lactam
    lactone methoxy morpholine nitrile nitro nitro_arom nitro_arom_nonortho nitroso oxazole oxime
    para_hydroxylation phenol phenol_noOrthoHbond phos_acid phos_ester piperdine piperzine priamide pyridine quatN
    sulfide sulfonamd sulfone term_acetylene tetrazole thiazole thiocyan thiophene urea
"""
_SINGLE = [
    *_PLAIN.split(),
    *(f"EState_VSA{i}" for i in range(1, 12)),
    *(f"VSA_EState{i}" for i in range(1, 11)),
    *(f"fr_{name}" for name in _FRAGMENTS.split()),
]
# Descriptors that are computed in groups, by one function of RDKit or from the same intermediate values.
_ESTATE = ["MaxEStateIndex", "MinEStateIndex", "MaxAbsEStateIndex", "MinAbsEStateIndex"]
_BCUT = "MWHI MWLOW CHGHI CHGLO LOGPHI LOGPLOW MRHI MRLOW"
_GROUPS = {
    "CalcCrippenDescriptors": ["MolLogP", "MolMR"],
    "BCUT2D": [f"BCUT2D_{end}" for end in _BCUT.split()],
    "PEOE_VSA_": [f"PEOE_VSA{i}" for i in range(1, 15)],
    "SlogP_VSA_": [f"SlogP_VSA{i}" for i in range(1, 13)],
    "SMR_VSA_": [f"SMR_VSA{i}" for i in range(1, 11)],
}


@dataclass(frozen=True)
class DescriptorKind:
    """Kind of descriptors: a fixed set of F descriptors."""

    names: tuple[str, ...]  # of the F descriptors
    dtype: type[np.generic]
    missing_value: float  # of all descriptors of an invalid molecule
    compute: Callable[[Chem.Mol], np.ndarray]  # of a molecule with canonical atom order: the values [F]


@cache
def _morgan_generator():
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=_MORGAN_RADIUS, fpSize=_MORGAN_BITS)


def _morgan(mol: Chem.Mol) -> np.ndarray:
    return np.minimum(_morgan_generator().GetCountFingerprintAsNumPy(mol), 255)


@cache
def _rdkit_functions() -> list[tuple[Callable, int]]:
    """Return the functions in the order of their descriptors, and the number of descriptors of each."""
    from rdkit.Chem import Descriptors, rdMolDescriptors  # slow to import

    functions = dict(Descriptors.descList)
    single = [(functions[name], 1) for name in _SINGLE]
    groups = [(getattr(rdMolDescriptors, function), len(names)) for function, names in _GROUPS.items()]
    return [*single, *groups, (_estate_range, len(_ESTATE))]


def _estate_range(mol: Chem.Mol) -> list[float]:
    from rdkit.Chem.EState import EStateIndices

    indices = EStateIndices(mol)
    sizes = np.abs(indices)
    return [indices.max(), indices.min(), sizes.max(), sizes.min()]


def _rdkit2d(mol: Chem.Mol) -> np.ndarray:
    numbers: list[float] = []
    for function, count in _rdkit_functions():
        try:
            numbers += np.ravel(function(mol)).tolist()
        except Exception:  # RDKit raises many types; the other descriptors are still valid
            numbers += [np.nan] * count
    values = np.array(numbers, np.float64)
    return np.where(np.isfinite(values), values.clip(-_LARGEST, _LARGEST), np.nan)


#: Kinds of descriptors, by their name in ``--features``.
DESCRIPTORS = {
    # Counts of atom environments with radius 2 (Rogers and Hahn 2010), folded to 2,048 numbers.
    "morgan": DescriptorKind(tuple(f"morgan{i}" for i in range(_MORGAN_BITS)), np.uint8, 0, _morgan),
    "rdkit2d": DescriptorKind((*_SINGLE, *chain(*_GROUPS.values()), *_ESTATE), np.float32, np.nan, _rdkit2d),
}


def descriptor_kinds(names: Iterable[str]) -> list[str]:
    """Select the names that are kinds of :data:`DESCRIPTORS`."""
    return [name for name in names if name in DESCRIPTORS]


def feature_column_names(names: Iterable[str]) -> list[str]:
    """Select the names that are numeric columns of the dataset."""
    return [name for name in names if name not in DESCRIPTORS]


def descriptor_width(names: Iterable[str]) -> int:
    """Number of descriptors of a molecule: all of each kind, and one per column."""
    return sum(len(DESCRIPTORS[name].names) if name in DESCRIPTORS else 1 for name in names)


def compute_descriptors(
    smiles: Sequence[str], kinds: Sequence[str], max_atoms: int = MAX_ATOMS
) -> dict[str, np.ndarray]:
    """Compute descriptors by kind ``[R, F]``, for any SMILES notation the same: ``morgan`` uint8, counts up to 255, 0
    if invalid; ``rdkit2d`` float32, up to 1e6 in magnitude, nan if invalid or where RDKit gives no finite number."""
    values = {}
    for name in kinds:
        kind = DESCRIPTORS[name]
        values[name] = np.full((len(smiles), len(kind.names)), kind.missing_value, kind.dtype)
    if not kinds:
        return values
    with rdkit_messages_blocked(), np.errstate(all="ignore"):
        for row, text in enumerate(smiles):
            try:
                mol = parse_molecule(text, max_atoms)
            except MoleculeError:
                continue
            # In canonical order, on which some descriptors depend.
            mol = reparse_canonical(mol) or Chem.RenumberAtoms(mol, np.argsort(canonical_ranks(mol)).tolist())
            for name in kinds:
                values[name][row] = DESCRIPTORS[name].compute(mol)
    return values
