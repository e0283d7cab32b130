"""Tables of the elements for :mod:`~graphslice.chem.graph_descriptors`, by OGB's index: the atomic number less 1.

The last index of each OGB feature stands for all values that are not listed, so every table has a value for it. Numbers
are written here and not read from RDKit, so that descriptors are the same with every version of it.
"""

from __future__ import annotations

import numpy as np

from graphslice.feature_dims import ATOM_DIMS

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
