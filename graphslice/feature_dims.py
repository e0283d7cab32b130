"""Sizes of the atom, bond and distance features, shared by the featurization and the model.

Separate from :mod:`graphslice.chem`, so that the model does not need RDKit.
"""

from __future__ import annotations

#: Number of values of each atom feature of OGB: element, chirality, degree, charge, hydrogens,
#: radical electrons, hybridization, aromatic, in a ring.
ATOM_DIMS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
#: Number of values of each bond feature of OGB: type, stereo, conjugated.
BOND_DIMS = (5, 6, 2)
#: Number of bond types: every combination of the three bond features.
NUM_BOND_TYPES = BOND_DIMS[0] * BOND_DIMS[1] * BOND_DIMS[2]
#: Number of classes of the smallest ring of a bond: none, 3 to 8 atoms, larger.
NUM_RING_CLASSES = 8
#: Distance assigned to two atoms in different fragments.
UNREACHABLE = 510
#: Longer distances are clipped to this value.
MAX_DISTANCE = UNREACHABLE - 1
