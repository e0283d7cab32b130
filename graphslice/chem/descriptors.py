"""Descriptors of a molecule: numbers beside its graph, which a model may read too.

Each kind is frozen: models hold a weight for every number, and a model that was trained with one version of RDKit
is read with another. Other numbers make another kind, with a name of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np
from rdkit import Chem, rdBase

from graphslice.chem.parse import MAX_ATOMS, MoleculeError, canonical_ranks, parse_molecule, reparse_canonical

# The largest magnitude of an RDKit descriptor.
_LARGEST = 1e6
_MORGAN_BITS, _MORGAN_RADIUS = 2048, 2

# RDKit's descriptors, as they are in every version since 2023.9, but for
# - Ipc and AvgIpc, whose coefficients grow exponentially with the molecule and take n^4 steps;
# - qed, a formula of eight of these and an alert list, which took a fifth of the time of all;
# - NumHAcceptors, SPS, fr_unbrch_alkane and fr_prisulfonamd, which mean something else in later versions.
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
# Those of which several are computed at once: by RDKit's function for all of them, or from the same numbers.
_ESTATE = ["MaxEStateIndex", "MinEStateIndex", "MaxAbsEStateIndex", "MinAbsEStateIndex"]
_BCUT = "MWHI MWLOW CHGHI CHGLO LOGPHI LOGPLOW MRHI MRLOW"
_TOGETHER = {
    "CalcCrippenDescriptors": ["MolLogP", "MolMR"],
    "BCUT2D": [f"BCUT2D_{end}" for end in _BCUT.split()],
    "PEOE_VSA_": [f"PEOE_VSA{i}" for i in range(1, 15)],
    "SlogP_VSA_": [f"SlogP_VSA{i}" for i in range(1, 13)],
    "SMR_VSA_": [f"SMR_VSA{i}" for i in range(1, 11)],
}


@dataclass(frozen=True)
class DescriptorKind:
    """Numbers that are computed together.

    Attributes:
        names: F names.
        dtype: of the numbers.
        absent: stands for each number of a row that is no molecule.
        compute: ``[F]`` of a molecule whose atoms are in canonical order.
    """

    names: tuple[str, ...]
    dtype: type[np.generic]
    missing_value: float
    compute: Callable[[Chem.Mol], np.ndarray]


@cache
def _morgan_generator():
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=_MORGAN_RADIUS, fpSize=_MORGAN_BITS)


def _morgan(mol: Chem.Mol) -> np.ndarray:
    return np.minimum(_morgan_generator().GetCountFingerprintAsNumPy(mol), 255)


@cache
def _rdkit_functions() -> tuple[list[Callable], list[tuple[Callable, int]]]:
    from rdkit.Chem import Descriptors, rdMolDescriptors  # slow to import

    known = dict(Descriptors.descList)
    together = [(getattr(rdMolDescriptors, function), len(names)) for function, names in _TOGETHER.items()]
    return [known[name] for name in _SINGLE], [*together, (_estate_range, len(_ESTATE))]


def _estate_range(mol: Chem.Mol) -> list[float]:
    from rdkit.Chem.EState import EStateIndices

    indices = EStateIndices(mol)
    sizes = np.abs(indices)
    return [indices.max(), indices.min(), sizes.max(), sizes.min()]


def _rdkit2d(mol: Chem.Mol) -> np.ndarray:
    found: list[float] = []
    single, together = _rdkit_functions()
    for function in single:
        try:
            found.append(function(mol))
        except Exception:  # whatever RDKit raises: the others are known all the same
            found.append(np.nan)
    for function, count in together:
        try:
            found += list(function(mol))
        except Exception:
            found += [np.nan] * count
    values = np.array(found, np.float64)
    return np.where(np.isfinite(values), values.clip(-_LARGEST, _LARGEST), np.nan)


#: The kinds of descriptors, by the name that ``--features`` gives them.
DESCRIPTORS = {
    # Environments of at most two bonds around an atom (Rogers and Hahn 2010), counted, folded to 2,048 numbers.
    "morgan": DescriptorKind(tuple(f"morgan{i}" for i in range(_MORGAN_BITS)), np.uint8, 0, _morgan),
    "rdkit2d": DescriptorKind((*_SINGLE, *chain(*_TOGETHER.values()), *_ESTATE), np.float32, np.nan, _rdkit2d),
}


def descriptor_kinds(names: Iterable[str]) -> list[str]:
    """Those of some names of descriptors that are kinds of :data:`DESCRIPTORS`."""
    return [name for name in names if name in DESCRIPTORS]


def feature_column_names(names: Iterable[str]) -> list[str]:
    """The others: columns of numbers of the user's own table."""
    return [name for name in names if name not in DESCRIPTORS]


def descriptor_width(names: Iterable[str]) -> int:
    """How many numbers a molecule has by some names: those of each kind, and one of each column."""
    return sum(len(DESCRIPTORS[name].names) if name in DESCRIPTORS else 1 for name in names)


def compute_descriptors(
    smiles: Sequence[str], kinds: Sequence[str], max_atoms: int = MAX_ATOMS
) -> dict[str, np.ndarray]:
    """Descriptors of some molecules, the same however a molecule is written.

    Args:
        smiles: R texts.
        kinds: of :data:`DESCRIPTORS`.
        max_atoms: the largest molecule.

    Returns:
        By kind ``[R, F]`` in its dtype: uint8 of ``morgan`` (a count beyond 255 is 255), float32 of ``rdkit2d`` (at
        most 1e6 in magnitude; nan where RDKit has no finite number). A row that is no molecule is 0 of ``morgan`` and
        nan of ``rdkit2d``.
    """
    found = {}
    for kind in kinds:
        of = DESCRIPTORS[kind]
        found[kind] = np.full((len(smiles), len(of.names)), of.missing_value, of.dtype)
    if not kinds:
        return found
    with rdBase.BlockLogs(), np.errstate(all="ignore"):
        for row, text in enumerate(smiles):
            try:
                mol = _in_canonical_order(parse_molecule(text, max_atoms))
            except MoleculeError:
                continue
            for kind in kinds:
                try:
                    found[kind][row] = DESCRIPTORS[kind].compute(mol)
                except Exception:  # a row without them is better than none of the others
                    continue
    return found


def _in_canonical_order(mol: Chem.Mol) -> Chem.Mol:
    """The molecule whatever its spelling: some descriptors depend on the order of atoms and bonds."""
    return reparse_canonical(mol) or Chem.RenumberAtoms(mol, np.argsort(canonical_ranks(mol)).tolist())
