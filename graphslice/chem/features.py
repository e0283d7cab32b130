"""How an RDKit molecule becomes arrays: OGB's nine features of an atom and three of a bond, and the bonds themselves.

The integers are those of ``ogb.utils.features`` (OGB 1.3.6, Hu et al. 2020). OGB's own code is not used because it
takes three times as long and fails at unknown stereo labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from rdkit.Chem import Atom, Bond, BondStereo, BondType, ChiralType, HybridizationType, Mol


class Feature(NamedTuple):
    """One feature: the index of a value of RDKit in OGB's list; values that are not listed share the next index.

    Attributes:
        indices: the index of each value of the list.
        read: returns the value of an atom or bond.
    """

    indices: dict[Any, int]
    read: Callable[[Any], Any]

    @classmethod
    def of(cls, values: Iterable[Any], read: Callable[[Any], Any]) -> Feature:
        return cls({value: index for index, value in enumerate(values)}, read)


#: The features of an atom, in OGB's order; :data:`~graphslice.feature_dims.ATOM_DIMS` has their numbers of indices.
ATOM_FEATURES = {
    "atomic number": Feature.of(range(1, 119), Atom.GetAtomicNum),  # a wildcard has 0
    "chirality": Feature.of(
        (
            ChiralType.CHI_UNSPECIFIED,
            ChiralType.CHI_TETRAHEDRAL_CW,
            ChiralType.CHI_TETRAHEDRAL_CCW,
            ChiralType.CHI_OTHER,
        ),
        Atom.GetChiralTag,
    ),
    "degree": Feature.of(range(11), Atom.GetTotalDegree),  # with all hydrogens
    "formal charge": Feature.of(range(-5, 6), Atom.GetFormalCharge),
    "hydrogens": Feature.of(range(9), Atom.GetTotalNumHs),  # that are no atoms of the graph
    "radical electrons": Feature.of(range(5), Atom.GetNumRadicalElectrons),
    "hybridization": Feature.of(
        (
            HybridizationType.SP,
            HybridizationType.SP2,
            HybridizationType.SP3,
            HybridizationType.SP3D,
            HybridizationType.SP3D2,
        ),
        Atom.GetHybridization,
    ),
    "aromatic": Feature.of((False, True), Atom.GetIsAromatic),
    "in a ring": Feature.of((False, True), Atom.IsInRing),
}

#: The features of a bond, in OGB's order; :data:`~graphslice.feature_dims.BOND_DIMS` has their numbers of indices.
BOND_FEATURES = {
    "type": Feature.of((BondType.SINGLE, BondType.DOUBLE, BondType.TRIPLE, BondType.AROMATIC), Bond.GetBondType),
    # STEREOANY, the last of OGB's list, is not listed, so that it stands for every other stereo too, such as that of
    # atropisomers, at which OGB's code fails.
    "stereo": Feature.of(
        (BondStereo.STEREONONE, BondStereo.STEREOZ, BondStereo.STEREOE, BondStereo.STEREOCIS, BondStereo.STEREOTRANS),
        Bond.GetStereo,
    ),
    "conjugated": Feature.of((False, True), Bond.GetIsConjugated),
}


def molecule_features(mol: Mol) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of a sanitized RDKit molecule with N atoms and M bonds, in its own order of both.

    Returns:
        The atom features ``uint8 [N, 9]``, the two atoms of each bond ``int32 [M, 2]``, each bond once, and the bond
        features ``uint8 [M, 3]``: the attributes of :class:`~graphslice.chem.molecule.MolGraph`.
    """
    atoms, bonds = list(mol.GetAtoms()), list(mol.GetBonds())
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], np.int32)
    return _features(atoms, ATOM_FEATURES), ends.reshape(-1, 2), _features(bonds, BOND_FEATURES)


def _features(parts: list[Any], features: dict[str, Feature]) -> np.ndarray:
    """Return the features of some atoms, or bonds: ``uint8``, one row for each."""
    columns = [[indices.get(value, len(indices)) for value in map(read, parts)] for indices, read in features.values()]
    return np.ascontiguousarray(np.array(columns, np.uint8).T)
