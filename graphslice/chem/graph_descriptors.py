"""Descriptors of molecular graphs, compiled with numba: a few microseconds per molecule, without RDKit or a SMILES.

They are counts of atoms, bonds and functional groups, connectivity indices, surface areas, partial charges,
electrotopological states, and counts of pairs of pharmacophore features by distance. Every value is a function of the
arrays of a molecule, so it does not depend on the SMILES notation where the atom order does not.

Sources: Kier and Hall 1986 (chi, kappa), Balaban 1982 (J), Ertl et al. 2000 (TPSA), Labute 2000 (surface area), Hall
and Kier 1995 (E-state), Gasteiger and Marsili 1980 (charges), Stiefl et al. 2006 (pairs of features). Where the
definition is simpler than that of RDKit (functional groups, acceptors, charges of conjugated ions, kappa without alpha,
J without bond orders), or another (kappa3 exchanges the factors of odd and even numbers of atoms), values differ for
some molecules; tests/chem/test_graph_descriptors.py says which are equal. Isotopes are not distinguished. Hydrogens
that are atoms of the graph count as atoms.

Tables of the elements are by OGB's index, the atomic number less 1; the last index of each OGB feature stands for all
values that are not listed. Their numbers are not read from RDKit, whose versions may differ.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from graphslice.chem.fingerprints import morgan_counts
from graphslice.chem.molecule import MolArrays
from graphslice.chem.paths import set_neighbours
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

#: OGB's index of elements that descriptors distinguish.
H, B, C, N, O, F, SI, P, S, CL, BR, I = 0, 4, 5, 6, 7, 8, 13, 14, 15, 16, 34, 52  # noqa: E741


def table(values: dict[int, float], default: float, dtype: type = np.float64) -> np.ndarray:
    """Return an array of all elements from values by OGB's index, and the value of all other elements."""
    array: np.ndarray = np.full(ATOM_DIMS[0], default, dtype)
    array[list(values)] = list(values.values())
    return array


# Standard atomic weights (g/mol), or the mass number of the longest-lived isotope, as in RDKit.
_MASSES = """
    1.008 4.003 6.941 9.012 10.812 12.011 14.007 15.999 18.998 20.18 22.99 24.305 26.982 28.086 30.974 32.067 35.453
    39.948 39.098 40.078 44.956 47.867 50.944 51.996 54.938 55.845 58.933 58.693 63.546 65.39 69.723 72.61 74.922 78.96
    79.904 83.8 85.468 87.62 88.906 91.224 92.906 95.94 98 101.07 102.906 106.42 107.868 112.412 114.818 118.711 121.76
    127.6 126.904 131.29 132.905 137.328 138.906 140.116 140.908 144.24 145 150.36 151.964 157.25 158.925 162.5 164.93
    167.26 168.934 173.04 174.967 178.49 180.948 183.84 186.207 190.23 192.217 195.078 196.967 200.59 204.383 207.2
    208.98 209 210 222 223 226 227 232.038 231.036 238.029 237 244 243 247 247 251 252 257 258 259 262 267 268 269 270
    269 278 281 281 285 284 289 288 293 292 294
"""
#: Atomic weight (g/mol); 100 for an unknown element.
MASS = table(dict(enumerate(map(float, _MASSES.split()))), 100.0)
#: True for fluorine, chlorine, bromine and iodine.
IS_HALOGEN = table(dict.fromkeys((F, CL, BR, I), True), False, np.bool_)

# Elements by their number of valence electrons: the atomic numbers of the main groups.
_GROUPS = {
    1: (1, 3, 11, 19, 37, 55, 87),
    2: (2, 4, 12, 20, 30, 38, 48, 56, 80, 88),
    3: (5, 13, 31, 49, 81),
    4: (6, 14, 32, 50, 82),
    5: (7, 15, 33, 51, 83),
    6: (8, 16, 34, 52, 84),
    7: (9, 17, 35, 53, 85),
    8: (10, 18, 36, 54, 86),
}
#: Number of valence electrons; 4 for transition metals.
VALENCE_ELECTRONS = table({number - 1: group for group, numbers in _GROUPS.items() for number in numbers}, 4.0)
#: Number of inner electrons; at least 1, since connectivity indices divide by it.
INNER_ELECTRONS = np.maximum(1.0, np.arange(1, ATOM_DIMS[0] + 1) - VALENCE_ELECTRONS - 1)
#: Principal quantum number of the valence shell: 1 and the number of noble gases before the element.
QUANTUM_NUMBER = 1.0 + (np.arange(1, ATOM_DIMS[0] + 1)[:, None] > [2, 10, 18, 36, 54, 86]).sum(axis=1)

#: Van der Waals radius (Angstrom).
RADIUS = table(
    {H: 1.2, B: 1.85, C: 1.95, N: 1.8, O: 1.7, F: 1.55, SI: 2.1, P: 2.05, S: 2.05, CL: 1.95, BR: 2.05, I: 2.25}, 2.1
)
#: Covalent radius (Angstrom): half the length of a single bond.
COVALENT_RADIUS = table(
    {H: 0.33, B: 0.83, C: 0.77, N: 0.7, O: 0.66, F: 0.64, SI: 1.17, P: 1.1, S: 1.04, CL: 0.99, BR: 1.14, I: 1.33}, 1.3
)

# Electronegativity a + b q + c q^2 of an orbital with charge q (eV; Gasteiger and Marsili 1980): a, b and c of sp, sp2
# and sp3. An element with one row has it for all three.
_ORBITALS = {
    H: ((7.17, 6.24, -0.56),),
    B: ((6.42, 6.807, 1.322), (6.42, 6.807, 1.322), (5.98, 6.82, 1.605)),
    C: ((10.39, 9.45, 0.73), (8.79, 9.32, 1.51), (7.98, 9.18, 1.88)),
    N: ((15.68, 11.7, -0.27), (12.87, 11.15, 0.85), (11.54, 10.82, 1.36)),
    O: ((17.07, 13.79, 0.47), (17.07, 13.79, 0.47), (14.18, 12.92, 1.39)),
    F: ((14.66, 13.85, 2.31),),
    SI: ((9.065, 7.027, -0.002), (7.905, 6.748, 0.443), (7.30, 6.567, 0.657)),
    P: ((9.665, 8.53, 0.735), (9.665, 8.53, 0.735), (8.90, 8.24, 0.96)),
    S: ((10.88, 9.485, 1.325), (10.88, 9.485, 1.325), (10.14, 9.13, 1.38)),
    CL: ((11.0, 9.69, 1.35),),
    BR: ((10.08, 8.47, 1.16),),
    I: ((9.9, 7.96, 0.96),),
}
#: a, b and c by element and hybridization: ``float64 [119, 3, 3]``; of other hybridizations, those of sp3.
ORBITALS = np.full((ATOM_DIMS[0], 3, 3), (8.0, 9.0, 1.5))
for _element, _rows in _ORBITALS.items():
    ORBITALS[_element] = _rows
#: Electronegativity of the cation (eV), by which charge transferred from an atom is divided; measured for hydrogen.
CATION = ORBITALS.sum(axis=2)
CATION[H] = 20.02

# Topological polar surface area (Angstrom^2; Ertl et al. 2000) of N and O, by the numbers of heavy neighbours and of
# hydrogens, the formal charge, and the numbers of double, triple and aromatic bonds.
_POLAR_AREAS: dict[int, dict[tuple[int, ...], float]] = {
    N: {
        (1, 0, 0, 0, 1, 0): 23.79, (1, 1, 0, 1, 0, 0): 23.85, (1, 2, 0, 0, 0, 0): 26.02, (1, 2, 1, 1, 0, 0): 25.59,
        (1, 3, 1, 0, 0, 0): 27.64, (2, 0, 0, 1, 0, 0): 12.36, (2, 0, 0, 1, 1, 0): 13.60, (2, 1, 0, 0, 0, 0): 12.03,
        (2, 0, 1, 0, 1, 0): 4.36, (2, 1, 1, 1, 0, 0): 13.97, (2, 2, 1, 0, 0, 0): 16.61, (2, 0, 0, 0, 0, 2): 12.89,
        (2, 1, 0, 0, 0, 2): 15.79, (2, 1, 1, 0, 0, 2): 14.14, (3, 0, 0, 0, 0, 0): 3.24, (3, 0, 0, 2, 0, 0): 11.68,
        (3, 0, 1, 1, 0, 0): 3.01, (3, 1, 1, 0, 0, 0): 4.44, (3, 0, 0, 0, 0, 3): 4.41, (3, 0, 0, 0, 0, 2): 4.93,
        (3, 0, 0, 1, 0, 2): 8.39, (3, 0, 1, 0, 0, 3): 4.10, (3, 0, 1, 0, 0, 2): 3.88, (4, 0, 1, 0, 0, 0): 0.0,
    },
    O: {
        (1, 0, 0, 1, 0, 0): 17.07, (1, 1, 0, 0, 0, 0): 20.23, (1, 0, -1, 0, 0, 0): 23.06, (2, 0, 0, 0, 0, 0): 9.23,
        (2, 0, 0, 0, 0, 2): 13.14,
    },
}  # fmt: skip
# Areas of those in a ring of three atoms that differ.
_THREE_RING_AREAS: dict[int, dict[tuple[int, ...], float]] = {
    N: {(2, 1, 0, 0, 0, 0): 21.94, (3, 0, 0, 0, 0, 0): 3.01},
    O: {(2, 0, 0, 0, 0, 0): 12.53},
}


def _polar_table() -> tuple[np.ndarray, np.ndarray]:
    areas = {}
    for element, by_kind in _POLAR_AREAS.items():
        for kind, area in by_kind.items():
            neighbours, hydrogens, charge, *bonds = kind
            for in_three_ring, value in enumerate((area, _THREE_RING_AREAS[element].get(kind, area))):
                digits = (element, neighbours, hydrogens, charge + 5, *bonds, in_three_ring)
                areas[int("".join(f"{digit:x}" for digit in digits), 16)] = value
    keys = np.array(sorted(areas))
    return keys, np.array([areas[key] for key in keys.tolist()])


#: Areas and their keys, ascending. The hexadecimal digits of a key are OGB's index of the element, the six numbers (5
#: more for the charge) and 1 in a ring of three atoms.
POLAR_KEYS, POLAR_AREAS = _polar_table()


_ELEMENTS = {"C": C, "N": N, "O": O, "F": F, "Si": SI, "P": P, "S": S, "Cl": CL, "Br": BR}
_ELEMENTS |= {"I": I, "B": B}
_ATOM_COUNTS = """
    other_elements atoms hydrogens weight charge positive_atoms negative_atoms radicals stereo_atoms
    aromatic_C aromatic_N aromatic_O aromatic_S sp_C sp2_C sp3_C fraction_sp3_C ring_atoms fused_atoms quaternary_C
    donors acceptors NH_OH halogens acids amides esters ketones amines alcohols phenols ethers anilines nitro nitriles
    sulfonyls aromatic_NH
"""
_BOND_COUNTS = """
    single_bonds double_bonds triple_bonds aromatic_bonds conjugated_bonds stereo_bonds ring_bonds rotatable_bonds
    rings fragments
"""
_TOPOLOGY = """
    chi0 chi1 chi2 chi3 chi4 chi0v chi1v chi2v chi3v chi4v kappa1 kappa2 kappa3 balaban_j log_wiener diameter radius
    zagreb
"""
# Upper bounds of the bins of Gasteiger charges and E-states, over which the surface area is divided.
_CHARGE_BOUNDS = np.array([-0.30, -0.25, -0.20, -0.15, -0.10, -0.05, 0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30])
_STATE_BOUNDS = np.array([-0.390, 0.290, 0.717, 1.165, 1.540, 1.807, 2.050, 4.690, 9.170, 15.0])
_SURFACE = (
    "tpsa",
    "surface_area",
    *(f"charge_area{i}" for i in range(len(_CHARGE_BOUNDS) + 1)),
    *(f"state_area{i}" for i in range(len(_STATE_BOUNDS) + 1)),
)
_STATES = "max_state min_state state_C state_aromatic_C state_N state_O state_S state_halogen"
_CHARGES = "max_charge min_charge sum_of_charge_sizes max_hydrogen_charge"
_FEATURES = ("donor", "acceptor", "positive", "negative", "aromatic", "hydrophobic")
_PAIRS = [(a, b) for a in range(len(_FEATURES)) for b in range(a, len(_FEATURES))]
# Bin of the distance between two features, by the number of bonds: 1, 2, 3, 4, up to 6, up to 8, and longer.
_PAIR_BINS = np.array([0, 0, 1, 2, 3, 4, 4, 5, 5, 6])

#: Names of the descriptors, in their order.
GRAPH_DESCRIPTORS = (
    *_ELEMENTS,
    *_ATOM_COUNTS.split(),
    *_BOND_COUNTS.split(),
    *_TOPOLOGY.split(),
    *_SURFACE,
    *_STATES.split(),
    *_CHARGES.split(),
    *(f"{_FEATURES[a]}_{_FEATURES[b]}_{k}" for a, b in _PAIRS for k in range(_PAIR_BINS.max() + 1)),
)
# Position of each descriptor, by name.
_AT: Any = namedtuple("_AT", GRAPH_DESCRIPTORS)(*range(len(GRAPH_DESCRIPTORS)))
_ELEMENT_AT = table({i: getattr(_AT, name) for name, i in _ELEMENTS.items()}, _AT.other_elements, np.int64)
# Position of the sum of E-states by element; -1 for elements without one.
_STATE_AT = table({C: _AT.state_C, N: _AT.state_N, O: _AT.state_O, S: _AT.state_S}, -1, np.int64)
_STATE_AT[IS_HALOGEN] = _AT.state_halogen
# Position of the first bin of a pair of features.
_PAIR_AT = np.zeros((len(_FEATURES), len(_FEATURES)), np.int64)
for _a, _b in _PAIRS:
    _PAIR_AT[_a, _b] = _PAIR_AT[_b, _a] = getattr(_AT, f"{_FEATURES[_a]}_{_FEATURES[_b]}_0")
_DONOR, _ACCEPTOR, _POSITIVE, _NEGATIVE, _AROMATIC_ATOM, _HYDROPHOBIC = range(len(_FEATURES))

# Columns of OGB's atom features, and their indices that have a name here.
_ELEMENT, _CHIRALITY, _, _CHARGE, _HYDROGENS, _RADICALS, _HYBRIDIZATION, _AROMATIC, _IN_RING = range(len(ATOM_DIMS))
_SP, _SP2, _SP3 = range(3)
# Formal charge by OGB's index; the last index is any other charge, of unknown sign.
_FORMAL_CHARGE = np.array([*range(-5, 6), 0])
# A bond type id is (type * stereo labels + stereo) * 2 + conjugated.
_IDS_PER_TYPE, _IDS_PER_STEREO = BOND_DIMS[1] * BOND_DIMS[2], BOND_DIMS[2]
_BOND_SHORTENING = np.array([0.0, 0.2, 0.3, 0.1, 0.0])  # by bond type (Angstrom)

_CHARGE_ROUNDS = 8
_H_ORBITAL, _H_RESISTANCE = tuple(ORBITALS[H, _SP3].tolist()), 1 / CATION[H, _SP3]
# Bound of partial charges, which would otherwise diverge for atoms with very many bonds.
_LARGEST_CHARGE = 10.0
_LARGEST = 1e6


class Neighbours(NamedTuple):
    """Neighbours of the N atoms of a molecule with M bonds: those of atom i are ``atoms[ptr[i]:ptr[i + 1]]``."""

    ptr: np.ndarray  # int32 [N + 1]
    atoms: np.ndarray  # int32 [2M]


# Counts of an atom's bonds and neighbours, the columns of an int64 array [N, 13]. The first five are its bonds of each
# type, in OGB's order. ``_OXO`` counts double bonds to O, ``_DOUBLE_OS`` those to O or S. ``_CARBONYLS`` and
# ``_SULFONYLS`` count the double bonds from neighbours C and S to O or S, except to the atom itself.
_SINGLES, _DOUBLES, _TRIPLES, _AROMATICS, _OTHERS = range(BOND_DIMS[0])
_RING_BONDS, _HETERO, _AROMATIC_NEAR, _OXYGENS, _OXO, _DOUBLE_OS, _CARBONYLS, _SULFONYLS = range(5, 13)
_NUM_COUNTS = 13


def graph_inputs(arrays: MolArrays) -> np.ndarray:
    """Return the inputs of the base models, ``float32 [G, 2048 + F]``: Morgan counts, then descriptors of the graph."""
    return np.concatenate([morgan_counts(arrays), graph_descriptors(arrays)], axis=1, dtype=np.float32)


def graph_descriptors(arrays: MolArrays) -> np.ndarray:
    """Compute :data:`GRAPH_DESCRIPTORS` of valid molecules (preprocessed, or ``check_molecules``), ``float32 [G, F]``:
    finite, at most 1e6 in magnitude; zeros for a molecule without atoms, which stands for an invalid one."""
    values = np.zeros((len(arrays), len(GRAPH_DESCRIPTORS)), np.float32)
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _describe(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, values)
    return values


@njit(cache=True, nogil=True)
def _describe(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, out):
    """Fill the rows of ``out`` of molecules that have atoms; values are float64 until they are limited and stored."""
    values = np.empty(out.shape[1])
    for g in range(len(atom_ptr) - 1):
        if atom_ptr[g] < atom_ptr[g + 1]:
            for k in range(len(values)):
                values[k] = 0.0
            begin, end = bond_ptr[g], bond_ptr[g + 1]
            molecule = atoms[atom_ptr[g] : atom_ptr[g + 1]]
            _describe_molecule(molecule, bonds[begin:end], bond_type_ids[begin:end], values)
            for k in range(len(values)):
                out[g, k] = min(max(values[k], -_LARGEST), _LARGEST)


@njit(cache=True, nogil=True, inline="always")
def _describe_molecule(atoms, bonds, type_ids, out):
    """Fill the descriptors ``out``, float64 [F] of zeros, of a molecule of at least one atom."""
    near = _neighbours(len(atoms), bonds)
    distances = _distances(near)
    in_ring = _find_rings(bonds, distances, out)
    counts = _count_neighbours(atoms, bonds, type_ids, in_ring)
    _count_atoms(atoms, counts, near, out)
    _count_bonds(bonds, type_ids, in_ring, counts, near, out)
    features = _count_groups(atoms, counts, near, out)
    _count_pairs(features, distances, out)
    _connectivity(atoms, bonds, near, out)
    _distance_indices(bonds, distances, out)
    charges = _partial_charges(atoms, bonds, near, out)
    states = _states(atoms, near, distances, out)
    _polar_area(atoms, counts, near, distances, out)
    _surface(atoms, bonds, type_ids, charges, states, out)


@njit(cache=True, nogil=True)
def _neighbours(num_atoms, bonds):
    ptr, atoms = np.empty(num_atoms + 1, np.int32), np.empty(2 * len(bonds), np.int32)
    set_neighbours(num_atoms, bonds, ptr, atoms)
    return Neighbours(ptr, atoms)


@njit(cache=True, nogil=True)
def _find_rings(bonds, distances, out):
    """Count fragments and rings (cyclomatic number); return which bonds are in rings, bool [M]: those that another bond
    crosses too, from the atoms that are nearer to one end to the other atoms."""
    in_ring, fragments = np.zeros(len(bonds), np.bool_), 0
    for i in range(len(distances)):
        fragments += distances[i, :i].sum() == 0
    for k in range(len(bonds)):
        to_i, to_j = distances[bonds[k, 0]], distances[bonds[k, 1]]
        for m in range(len(bonds)):
            a, b = bonds[m, 0], bonds[m, 1]
            if m != k and to_i[a] - to_j[a] != to_i[b] - to_j[b]:
                in_ring[k] = True
                break
    out[_AT.rings], out[_AT.fragments] = len(bonds) - len(distances) + fragments, fragments
    return in_ring


@njit(cache=True, nogil=True)
def _count_neighbours(atoms, bonds, type_ids, in_ring):
    """Count the bonds and neighbours of each atom: int64 [N, 13], with the columns defined above."""
    counts = np.zeros((len(atoms), _NUM_COUNTS), np.int64)
    for k in range(len(bonds)):
        order = type_ids[k] // _IDS_PER_TYPE
        for side in range(2):
            i, j = bonds[k, side], bonds[k, 1 - side]
            element = atoms[j, _ELEMENT]
            counts[i, order] += 1
            counts[i, _RING_BONDS] += in_ring[k]
            counts[i, _HETERO] += element not in (C, H)
            counts[i, _AROMATIC_NEAR] += atoms[j, _AROMATIC]
            counts[i, _OXYGENS] += element == O
            counts[i, _OXO] += order == _DOUBLES and element == O
            counts[i, _DOUBLE_OS] += order == _DOUBLES and element in (O, S)
    for k in range(len(bonds)):
        for side in range(2):
            i, j = bonds[k, side], bonds[k, 1 - side]
            element = atoms[j, _ELEMENT]
            if element in (C, S):
                itself = type_ids[k] // _IDS_PER_TYPE == _DOUBLES and atoms[i, _ELEMENT] in (O, S)
                counts[i, _CARBONYLS if element == C else _SULFONYLS] += counts[j, _DOUBLE_OS] - itself
    return counts


@njit(cache=True, nogil=True)
def _distances(near):
    """Number of bonds between each pair of atoms, uint16 [N, N]; 0 between fragments. Breadth-first from each atom."""
    distances = np.zeros((len(near.ptr) - 1, len(near.ptr) - 1), np.uint16)
    queue = np.empty(len(distances), np.int64)
    for source in range(len(distances)):
        row = distances[source]
        queue[0] = source
        head, tail = 0, 1
        while head < tail:
            i = queue[head]
            head += 1
            for e in range(near.ptr[i], near.ptr[i + 1]):
                j = near.atoms[e]
                if row[j] == 0 and j != source:
                    row[j] = row[i] + 1
                    queue[tail] = j
                    tail += 1
    return distances


@njit(cache=True, nogil=True)
def _count_atoms(atoms, counts, near, out):
    out[_AT.atoms] = len(atoms)
    for i in range(len(atoms)):
        element, charge = atoms[i, _ELEMENT], _FORMAL_CHARGE[atoms[i, _CHARGE]]
        out[_ELEMENT_AT[element]] += 1
        out[_AT.hydrogens] += atoms[i, _HYDROGENS]
        out[_AT.weight] += MASS[element] + MASS[H] * atoms[i, _HYDROGENS]
        out[_AT.charge] += charge
        out[_AT.positive_atoms] += charge > 0
        out[_AT.negative_atoms] += charge < 0
        out[_AT.radicals] += atoms[i, _RADICALS]
        out[_AT.stereo_atoms] += atoms[i, _CHIRALITY] in (1, 2)
        out[_AT.ring_atoms] += atoms[i, _IN_RING]
        out[_AT.fused_atoms] += counts[i, _RING_BONDS] > 2
        out[_AT.halogens] += IS_HALOGEN[element]
        if atoms[i, _AROMATIC]:
            out[_AT.aromatic_C] += element == C
            out[_AT.aromatic_N] += element == N
            out[_AT.aromatic_O] += element == O
            out[_AT.aromatic_S] += element == S
        if element == C:
            out[_AT.sp_C] += atoms[i, _HYBRIDIZATION] == _SP
            out[_AT.sp2_C] += atoms[i, _HYBRIDIZATION] == _SP2
            out[_AT.sp3_C] += atoms[i, _HYBRIDIZATION] == _SP3
            out[_AT.quaternary_C] += near.ptr[i + 1] - near.ptr[i] == 4
    out[_AT.fraction_sp3_C] = out[_AT.sp3_C] / max(1.0, out[_AT.C])


@njit(cache=True, nogil=True)
def _count_bonds(bonds, type_ids, in_ring, counts, near, out):
    """Count bonds by type; rotatable ones are single, not in a ring or next to a triple bond, and not at an end."""
    for k in range(len(bonds)):
        order = type_ids[k] // _IDS_PER_TYPE
        if order < _OTHERS:
            out[_AT.single_bonds + order] += 1
        out[_AT.conjugated_bonds] += type_ids[k] % _IDS_PER_STEREO
        out[_AT.stereo_bonds] += type_ids[k] % _IDS_PER_TYPE // _IDS_PER_STEREO in (1, 2)
        out[_AT.ring_bonds] += in_ring[k]
        rotatable = order == _SINGLES and not in_ring[k]
        for side in range(2):
            i = bonds[k, side]
            rotatable &= near.ptr[i + 1] - near.ptr[i] > 1 and counts[i, _TRIPLES] == 0
        out[_AT.rotatable_bonds] += rotatable


@njit(cache=True, nogil=True)
def _count_groups(atoms, counts, near, out):
    """Count functional groups by their central atom; return the pharmacophore features of each atom, bool [N, 6]."""
    features = np.zeros((len(atoms), len(_FEATURES)), np.bool_)
    for i in range(len(atoms)):
        element, aromatic, degree = atoms[i, _ELEMENT], atoms[i, _AROMATIC] == 1, near.ptr[i + 1] - near.ptr[i]
        charge = _FORMAL_CHARGE[atoms[i, _CHARGE]]
        features[i, _AROMATIC_ATOM] = aromatic
        features[i, _POSITIVE] = charge > 0
        if element == C:
            features[i, _HYDROPHOBIC] = not aromatic and counts[i, _HETERO] == 0
            out[_AT.ketones] += not aromatic and degree == 3 and counts[i, _OXO] == 1 and counts[i, _HETERO] == 1
        elif element == N:
            _count_nitrogen(i, degree, charge, atoms, counts, features, out)
        elif element == O:
            _count_oxygen(i, degree, charge, atoms, counts, features, out)
        elif element == S:
            features[i, _NEGATIVE] = charge < 0
            out[_AT.sulfonyls] += counts[i, _OXO] == 2
        elif IS_HALOGEN[element]:
            features[i, _HYDROPHOBIC] = element != F
        out[_AT.donors] += features[i, _DONOR]
        out[_AT.acceptors] += features[i, _ACCEPTOR]
    return features


@njit(cache=True, nogil=True)
def _count_nitrogen(i, degree, charge, atoms, counts, features, out):
    """Count the group of a nitrogen: an amide includes ureas, carbamates, imides, thioamides and rings with them."""
    aromatic, hydrogens = atoms[i, _AROMATIC] == 1, np.int64(atoms[i, _HYDROGENS])
    amide = counts[i, _CARBONYLS] > 0
    acyl = amide or counts[i, _SULFONYLS] > 0
    amine = not (aromatic or acyl or counts[i, _DOUBLES] or counts[i, _TRIPLES])
    # The free electron pair of pyrrole, with three neighbours, and of an amide is conjugated.
    acceptor = charge <= 0 and (degree + hydrogens == 2 if aromatic else not acyl)
    features[i, _DONOR], features[i, _ACCEPTOR] = hydrogens > 0, acceptor
    features[i, _POSITIVE] = (charge > 0 and counts[i, _OXYGENS] == 0) or (amine and counts[i, _AROMATIC_NEAR] == 0)
    out[_AT.NH_OH] += hydrogens
    out[_AT.amides] += amide
    out[_AT.amines] += amine
    out[_AT.anilines] += amine and counts[i, _AROMATIC_NEAR] > 0
    out[_AT.nitro] += counts[i, _OXYGENS] >= 2
    out[_AT.nitriles] += degree == 1 and counts[i, _TRIPLES] == 1 and hydrogens == 0
    out[_AT.aromatic_NH] += aromatic and hydrogens > 0


@njit(cache=True, nogil=True)
def _count_oxygen(i, degree, charge, atoms, counts, features, out):
    """Count the group of an oxygen: an ester includes carbonates, carbamates, anhydrides and aromatic lactones."""
    aromatic, hydrogens = atoms[i, _AROMATIC] == 1, np.int64(atoms[i, _HYDROGENS])
    acyl = counts[i, _CARBONYLS] > 0
    hydroxyl = degree == 1 and hydrogens == 1
    acid = acyl and degree == 1 and (hydrogens == 1 or charge < 0)
    features[i, _DONOR], features[i, _ACCEPTOR] = hydrogens > 0, not aromatic
    features[i, _NEGATIVE] = acid or charge < 0
    out[_AT.NH_OH] += hydrogens
    out[_AT.acids] += acid
    out[_AT.esters] += acyl and degree == 2
    out[_AT.alcohols] += hydroxyl and not acyl and counts[i, _AROMATIC_NEAR] == 0
    out[_AT.phenols] += hydroxyl and counts[i, _AROMATIC_NEAR] > 0
    out[_AT.ethers] += degree == 2 and not aromatic and not acyl


@njit(cache=True, nogil=True)
def _count_pairs(features, distances, out):
    """Count the pairs of pharmacophore features on different atoms of a fragment, by distance."""
    atoms, kinds = np.nonzero(features)
    for a in range(len(atoms)):
        row, at = distances[atoms[a]], _PAIR_AT[kinds[a]]
        for b in range(a):
            distance = row[atoms[b]]
            if distance > 0:
                out[at[kinds[b]] + _PAIR_BINS[min(distance, len(_PAIR_BINS) - 1)]] += 1


@njit(cache=True, nogil=True)
def _connectivity(atoms, bonds, near, out):
    """Chi indices of order 0 to 4, simple and by valence, and kappa indices of order 1 to 3."""
    n = len(atoms)
    simple, valence = np.zeros(n), np.zeros(n)
    for i in range(n):
        element, degree = atoms[i, _ELEMENT], near.ptr[i + 1] - near.ptr[i]
        delta = (VALENCE_ELECTRONS[element] - atoms[i, _HYDROGENS]) / INNER_ELECTRONS[element]
        if degree > 0:
            simple[i] = 1 / np.sqrt(degree)
        if delta > 0:
            valence[i] = 1 / np.sqrt(delta)
        out[_AT.zagreb] += degree * degree
    paths2, paths3 = _add_chi(simple, _AT.chi0, bonds, near, out)
    _add_chi(valence, _AT.chi0v, bonds, near, out)
    odd = n % 2
    if len(bonds) > 0:
        out[_AT.kappa1] = n * ((n - 1) / len(bonds)) ** 2
    if paths2 > 0:
        out[_AT.kappa2] = (n - 1) * ((n - 2) / paths2) ** 2
    if paths3 > 0:
        out[_AT.kappa3] = (n - 1 - odd) * ((n - 3 + odd) / paths3) ** 2


@njit(cache=True, nogil=True)
def _add_chi(weights, first, bonds, near, out):
    """Add the products of the weights along all paths of 0 to 4 bonds, from descriptor ``first`` on; return the numbers
    of paths of 2 and 3 bonds."""
    ptr, atoms = near.ptr, near.atoms
    paths2, paths3 = 0, 0
    for c in range(len(weights)):  # paths of 0, 2 and 4 bonds, by their central atom
        out[first] += weights[c]
        for at_b in range(ptr[c], ptr[c + 1]):
            for at_d in range(ptr[c], at_b):
                b, d = atoms[at_b], atoms[at_d]
                outer = 0.0
                for at_a in range(ptr[b], ptr[b + 1]):
                    for at_e in range(ptr[d], ptr[d + 1]):
                        a, e = atoms[at_a], atoms[at_e]
                        if a != c and a != d and a != e and b != e and c != e:
                            outer += weights[a] * weights[e]
                product = weights[b] * weights[c] * weights[d]
                paths2 += 1
                out[first + 2] += product
                out[first + 4] += product * outer
    for k in range(len(bonds)):  # paths of 1 and 3 bonds, by their central bond
        b, c = bonds[k, 0], bonds[k, 1]
        outer = 0.0
        for at_a in range(ptr[b], ptr[b + 1]):
            for at_d in range(ptr[c], ptr[c + 1]):
                a, d = atoms[at_a], atoms[at_d]
                if a != c and a != d and b != d:
                    paths3 += 1
                    outer += weights[a] * weights[d]
        out[first + 1] += weights[b] * weights[c]
        out[first + 3] += weights[b] * weights[c] * outer
    return paths2, paths3


@njit(cache=True, nogil=True)
def _distance_indices(bonds, distances, out):
    """Balaban's J without bond orders, the Wiener index, and the largest and smallest eccentricity of an atom."""
    n = len(distances)
    sums = np.empty(n)
    wiener, diameter, radius = 0.0, 0, n
    for i in range(n):
        total, farthest = 0, 0
        for distance in distances[i]:
            total += distance
            farthest = max(farthest, distance)
        sums[i] = total
        wiener += total / 2
        diameter, radius = max(diameter, farthest), min(radius, farthest)
    connectivity = 0.0
    for k in range(len(bonds)):
        connectivity += 1 / np.sqrt(sums[bonds[k, 0]] * sums[bonds[k, 1]])
    out[_AT.balaban_j] = len(bonds) / (out[_AT.rings] + 1) * connectivity
    out[_AT.log_wiener] = np.log1p(wiener)
    out[_AT.diameter], out[_AT.radius] = diameter, radius


@njit(cache=True, nogil=True)
def _partial_charges(atoms, bonds, near, out):
    """Partial equalization of orbital electronegativity; return the charge of each atom, without its hydrogens.

    In each round, charge flows along every bond from the less electronegative atom to the other one: the difference of
    their electronegativities divided by that of the donor's cation, halved from round to round. The hydrogens of an
    atom, which are no atoms of the graph, share one charge.
    """
    n = len(atoms)
    charges, hydrogens = _shared_charges(atoms, near), np.zeros(n)
    num_hydrogens, negativities, changes = np.empty(n), np.empty(n), np.empty(n)
    a, b, c, resistances = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        element, hybridization = atoms[i, _ELEMENT], min(atoms[i, _HYBRIDIZATION], _SP3)
        num_hydrogens[i] = atoms[i, _HYDROGENS]
        resistances[i] = 1 / CATION[element, hybridization]
        a[i], b[i], c[i] = ORBITALS[element, hybridization]
    damping = 1.0
    for _ in range(_CHARGE_ROUNDS):
        damping /= 2
        for i in range(n):
            negativities[i] = a[i] + charges[i] * (b[i] + charges[i] * c[i])
            of_hydrogen = _H_ORBITAL[0] + hydrogens[i] * (_H_ORBITAL[1] + hydrogens[i] * _H_ORBITAL[2])
            flow = _flow(of_hydrogen - negativities[i], resistances[i], _H_RESISTANCE)
            changes[i] = flow * num_hydrogens[i]
            hydrogens[i] = _bounded(hydrogens[i] - damping * flow)
        for k in range(len(bonds)):
            i, j = bonds[k, 0], bonds[k, 1]
            flow = _flow(negativities[j] - negativities[i], resistances[i], resistances[j])
            changes[i] += flow
            changes[j] -= flow
        for i in range(n):
            charges[i] = _bounded(charges[i] + damping * changes[i])
    for i in range(n):
        if num_hydrogens[i] > 0:
            out[_AT.max_hydrogen_charge] = max(out[_AT.max_hydrogen_charge], hydrogens[i])
    out[_AT.max_charge], out[_AT.min_charge] = charges.max(), charges.min()
    out[_AT.sum_of_charge_sizes] = np.abs(charges).sum()
    return charges


@njit(cache=True, nogil=True)
def _shared_charges(atoms, near):
    """Formal charges, float64 [N]; oxygens with the same single neighbour (C, N, P or S) share theirs equally."""
    charges = np.empty(len(atoms))
    for i in range(len(atoms)):
        charges[i] = _FORMAL_CHARGE[atoms[i, _CHARGE]]
    for i in range(len(atoms)):
        if charges[i] == 0 or not _is_bare_oxygen(i, atoms, near):
            continue
        center = near.atoms[near.ptr[i]]
        if atoms[center, _ELEMENT] in (C, N, P, S):
            total, oxygens = 0.0, 0
            for e in range(near.ptr[center], near.ptr[center + 1]):
                if _is_bare_oxygen(near.atoms[e], atoms, near):
                    total += charges[near.atoms[e]]
                    oxygens += 1
            for e in range(near.ptr[center], near.ptr[center + 1]):
                if _is_bare_oxygen(near.atoms[e], atoms, near):
                    charges[near.atoms[e]] = total / oxygens
    return charges


@njit(cache=True, nogil=True)
def _is_bare_oxygen(i, atoms, near):
    return atoms[i, _ELEMENT] == O and near.ptr[i + 1] - near.ptr[i] == 1 and atoms[i, _HYDROGENS] == 0


@njit(cache=True, nogil=True)
def _flow(difference, resistance, other):
    """Charge that an atom gains from another of higher (positive difference) or lower electronegativity; no branch."""
    return max(difference, 0.0) * resistance + min(difference, 0.0) * other


@njit(cache=True, nogil=True)
def _bounded(charge):
    return min(max(charge, -_LARGEST_CHARGE), _LARGEST_CHARGE)


@njit(cache=True, nogil=True)
def _states(atoms, near, distances, out):
    """Electrotopological states: return those of the atoms, float64 [N]."""
    n = len(atoms)
    intrinsic, states, weights = np.empty(n), np.empty(n), np.zeros(n)
    for i in range(n):
        element, degree = atoms[i, _ELEMENT], max(1, near.ptr[i + 1] - near.ptr[i])
        electrons = max(0.0, VALENCE_ELECTRONS[element] - atoms[i, _HYDROGENS])
        states[i] = intrinsic[i] = ((2 / QUANTUM_NUMBER[element]) ** 2 * electrons + 1) / degree
        if i > 0:  # the distance 0 means different fragments, which do not perturb each other
            weights[i] = 1 / (i + 1) ** 2
    for i in range(n):
        for j in range(i):
            perturbation = (intrinsic[i] - intrinsic[j]) * weights[distances[i, j]]
            states[i] += perturbation
            states[j] -= perturbation
    out[_AT.max_state], out[_AT.min_state] = states.max(), states.min()
    for i in range(n):
        at = _STATE_AT[atoms[i, _ELEMENT]]
        if at == _AT.state_C and atoms[i, _AROMATIC]:
            at = _AT.state_aromatic_C
        if at >= 0:
            out[at] += states[i]
    return states


@njit(cache=True, nogil=True)
def _polar_area(atoms, counts, near, distances, out):
    """Topological polar surface area (Angstrom^2) of nitrogens and oxygens."""
    for i in range(len(atoms)):
        element = np.int64(atoms[i, _ELEMENT])
        if element not in (N, O):
            continue
        neighbours = near.atoms[near.ptr[i] : near.ptr[i + 1]]
        degree, hydrogens, in_three_ring = len(neighbours), np.int64(atoms[i, _HYDROGENS]), 0
        for a in range(len(neighbours)):
            if atoms[neighbours[a], _ELEMENT] == H:
                degree, hydrogens = degree - 1, hydrogens + 1
            for b in range(a):
                if distances[neighbours[a], neighbours[b]] == 1:
                    in_three_ring = 1
        doubles, triples, aromatics = counts[i, _DOUBLES], counts[i, _TRIPLES], counts[i, _AROMATICS]
        charge, key = _FORMAL_CHARGE[atoms[i, _CHARGE]] + 5, np.int64(0)
        for digit in (element, degree, hydrogens, charge, doubles, triples, aromatics, in_three_ring):
            key = key << 4 | min(digit, 15)
        at = np.searchsorted(POLAR_KEYS, key)
        if at < len(POLAR_KEYS) and POLAR_KEYS[at] == key and counts[i, _OTHERS] == 0:
            out[_AT.tpsa] += POLAR_AREAS[at]
        else:
            first, less = (30.5, 8.2) if element == N else (28.5, 8.6)
            out[_AT.tpsa] += max(0.0, first - less * degree + 1.5 * hydrogens)


@njit(cache=True, nogil=True)
def _surface(atoms, bonds, type_ids, charges, states, out):
    """Van der Waals surface area (Angstrom^2), also by partial charge and by E-state of the atom: of a sphere, without
    what lies within those of neighbours and hydrogens."""
    n = len(atoms)
    overlap = np.empty(n)
    for i in range(n):
        element = atoms[i, _ELEMENT]
        length = COVALENT_RADIUS[element] + COVALENT_RADIUS[H]
        overlap[i] = atoms[i, _HYDROGENS] * _overlap(RADIUS[element], RADIUS[H], length)
    for k in range(len(bonds)):
        i, j = bonds[k, 0], bonds[k, 1]
        a, b = atoms[i, _ELEMENT], atoms[j, _ELEMENT]
        length = COVALENT_RADIUS[a] + COVALENT_RADIUS[b] - _BOND_SHORTENING[type_ids[k] // _IDS_PER_TYPE]
        overlap[i] += _overlap(RADIUS[a], RADIUS[b], length)
        overlap[j] += _overlap(RADIUS[b], RADIUS[a], length)
    for i in range(n):
        radius = RADIUS[atoms[i, _ELEMENT]]
        area = np.pi * radius * max(0.0, 4 * radius - overlap[i])
        out[_AT.surface_area] += area
        out[_AT.charge_area0 + np.searchsorted(_CHARGE_BOUNDS, charges[i], "right")] += area
        out[_AT.state_area0 + np.searchsorted(_STATE_BOUNDS, states[i], "right")] += area


@njit(cache=True, nogil=True)
def _overlap(radius, other, length):
    """Height (times 2) of the cap of a sphere that lies within the sphere of another radius at a distance."""
    length = min(max(abs(radius - other), length), radius + other)
    return (other * other - (radius - length) ** 2) / length
