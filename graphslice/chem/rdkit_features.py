"""OGB's atom and bond features through RDKit's Python interface, for molecules the compiled reader cannot read."""

from __future__ import annotations

from rdkit import Chem

from graphslice.chem.rdkit_pickle import BOND_STEREO, BOND_TYPE, CHIRALITY, HYBRIDIZATION
from graphslice.feature_dims import ATOM_DIMS

_WILDCARD = ATOM_DIMS[0] - 1


def atom_features(atom: Chem.Atom) -> tuple[int, ...]:
    """Return the nine features of an atom, as in :attr:`MolGraph.atoms`."""
    number = atom.GetAtomicNum()
    charge = atom.GetFormalCharge()
    return (
        number - 1 if 1 <= number <= 118 else _WILDCARD,
        CHIRALITY[int(atom.GetChiralTag())],
        min(atom.GetTotalDegree(), 11),
        charge + 5 if -5 <= charge <= 5 else 11,
        min(atom.GetTotalNumHs(), 9),
        min(atom.GetNumRadicalElectrons(), 5),
        HYBRIDIZATION[int(atom.GetHybridization())],
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


def features_of_bond(bond: Chem.Bond) -> tuple[int, ...]:
    """Return the three features of a bond, as in :attr:`MolGraph.bond_features`."""
    return (
        BOND_TYPE[int(bond.GetBondType())],
        BOND_STEREO[int(bond.GetStereo())],
        bond.GetIsConjugated(),
    )
