"""Descriptors of molecular graphs, compiled with numba: a few microseconds a molecule, without RDKit or a SMILES.

They are counts of atoms, bonds and functional groups, connectivity indices, surface areas, partial charges,
electrotopological states, and counts of pairs of pharmacophore features by distance. Every value is a function of the
arrays of a molecule, so it does not depend on the SMILES notation where the atom order does not.

Sources: Kier and Hall 1986 (chi, kappa), Balaban 1982 (J), Ertl et al. 2000 (TPSA), Labute 2000 (surface area), Hall
and Kier 1995 (E-state), Gasteiger and Marsili 1980 (charges), Stiefl et al. 2006 (pairs of features). Where the
definition is simpler than that of RDKit (functional groups, donors and acceptors, charges of conjugated ions, kappa
without alpha), values differ for some molecules; tests/chem/test_graph_descriptors.py says which are equal.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit

from graphslice.chem.fingerprints import morgan_counts
from graphslice.chem.molecule import MolArrays
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

_FEATURES = ("donor", "acceptor", "positive", "negative", "aromatic", "hydrophobic")
_PAIRS = [(a, b) for a in range(len(_FEATURES)) for b in range(a, len(_FEATURES))]
# Bins of the distance of two features: up to these numbers of bonds, then all longer distances.
_PAIR_BOUNDS = (1, 2, 3, 4, 6, 8)
_ELEMENTS = {"C": 6, "N": 7, "O": 8, "F": 9, "Si": 14, "P": 15, "S": 16, "Cl": 17, "Br": 35, "I": 53, "B": 5}
# Upper bounds of the bins of Gasteiger charges and E-states, over which the surface area is divided.
_CHARGE_BINS = np.array([-0.30, -0.25, -0.20, -0.15, -0.10, -0.05, 0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30])
_STATE_BINS = np.array([-0.390, 0.290, 0.717, 1.165, 1.540, 1.807, 2.050, 4.690, 9.170, 15.0])

_ATOM_COUNTS = """
    other_elements atoms hydrogens weight charge positive_atoms negative_atoms radicals stereo_atoms
    aromatic_C aromatic_N aromatic_O aromatic_S sp_C sp2_C sp3_C fraction_sp3_C ring_atoms fused_atoms quaternary_C
    donors acceptors NH_OH halogens acids amides esters ketones amines alcohols phenols ethers anilines nitro nitriles
    sulfonyls aromatic_NH
"""
_BOND_COUNTS = """
    single_bonds double_bonds triple_bonds aromatic_bonds conjugated_bonds stereo_bonds bonds_of_ring_atoms
    flexible_bonds rings fragments
"""
_TOPOLOGY = """
    chi0 chi1 chi2 chi3 chi4 chi0v chi1v chi2v chi3v chi4v kappa1 kappa2 kappa3 balaban_j log_wiener diameter radius
    zagreb
"""
_STATES = "max_state min_state state_C state_aromatic_C state_N state_O state_S state_halogen"
_CHARGES = "max_charge min_charge sum_of_charge_sizes max_hydrogen_charge"
_SURFACE = ("tpsa", "surface_area", *(f"charge_area{i}" for i in range(14)), *(f"state_area{i}" for i in range(11)))

#: Names of the descriptors, in their order.
GRAPH_DESCRIPTORS = (
    *_ELEMENTS,
    *_ATOM_COUNTS.split(),
    *_BOND_COUNTS.split(),
    *_TOPOLOGY.split(),
    *_SURFACE,
    *_STATES.split(),
    *_CHARGES.split(),
    *(f"{_FEATURES[a]}_{_FEATURES[b]}_{k}" for a, b in _PAIRS for k in range(len(_PAIR_BOUNDS) + 1)),
)
# Position of each descriptor, by name.
_AT = namedtuple("_AT", GRAPH_DESCRIPTORS)(*range(len(GRAPH_DESCRIPTORS)))

# Columns of OGB's atom features.
_CHIRALITY, _DEGREE, _CHARGE, _HYDROGENS, _RADICALS, _HYBRIDIZATION, _AROMATIC, _IN_RING = range(1, 9)
_NO_CHARGE = 5
_SP, _SP2, _SP3 = 0, 1, 2
_SINGLE, _DOUBLE, _TRIPLE, _AROMATIC_BOND = range(4)
_IDS_PER_TYPE, _CONJUGATED = BOND_DIMS[1] * BOND_DIMS[2], BOND_DIMS[2]
_CHARGE_ROUNDS = 8


def _table(values: dict[int, float], default: float) -> np.ndarray:
    """Values by OGB's index of the element, which is the atomic number less 1."""
    table = np.full(ATOM_DIMS[0], default)
    for number, value in values.items():
        table[number - 1] = value
    return table


_MASS = _table(
    {1: 1.008, 5: 10.81, 6: 12.011, 7: 14.007, 8: 15.999, 9: 18.998, 11: 22.99, 12: 24.305, 14: 28.086, 15: 30.974}
    | {16: 32.06, 17: 35.45, 19: 39.098, 20: 40.078, 30: 65.38, 34: 78.971, 35: 79.904, 50: 118.71, 53: 126.904},
    100.0,
)
_NEGATIVITY = _table(
    {1: 2.20, 5: 2.04, 6: 2.55, 7: 3.04, 8: 3.44, 9: 3.98, 11: 0.93, 12: 1.31, 14: 1.90, 15: 2.19, 16: 2.58, 17: 3.16}
    | {19: 0.82, 20: 1.00, 34: 2.55, 35: 2.96, 53: 2.66},
    2.0,
)
# Covalent radii of Labute's surface area (Angstrom).
_RADIUS = _table(
    {1: 1.2, 5: 1.85, 6: 1.95, 7: 1.8, 8: 1.7, 9: 1.55, 14: 2.1, 15: 2.05, 16: 2.05, 17: 1.95, 35: 2.05, 53: 2.25}, 2.1
)
_COVALENT = _table(
    {1: 0.33, 5: 0.83, 6: 0.77, 7: 0.7, 8: 0.66, 9: 0.64, 14: 1.17, 15: 1.1, 16: 1.04, 17: 0.99, 35: 1.14, 53: 1.33},
    1.3,
)
_PRINCIPAL = _table(
    dict.fromkeys((1, 2), 1.0)
    | dict.fromkeys(range(3, 11), 2.0)
    | dict.fromkeys(range(11, 19), 3.0)
    | dict.fromkeys(range(19, 37), 4.0)
    | dict.fromkeys(range(37, 55), 5.0),
    6.0,
)
_VALENCE = _table(
    {1: 1, 5: 3, 6: 4, 7: 5, 8: 6, 9: 7, 14: 4, 15: 5, 16: 6, 17: 7, 34: 6, 35: 7, 53: 7, 11: 1, 19: 1, 12: 2, 20: 2},
    4.0,
)
# Orbital electronegativity a + b q + c q^2 (Gasteiger and Marsili 1980) of H, then by element and hybridization.
_HYDROGEN_ORBITAL = np.array([7.17, 6.24, -0.56])
_ORBITALS = np.zeros((ATOM_DIMS[0], 3, 3))
_ORBITALS[:] = [8.0, 9.0, 1.5]
for _element, _by_hybridization in {
    6: ((10.39, 9.45, 0.73), (8.79, 9.32, 1.51), (7.98, 9.18, 1.88)),
    7: ((15.68, 11.7, -0.27), (12.87, 11.15, 0.85), (11.54, 10.82, 1.36)),
    8: ((17.07, 13.79, 0.47), (17.07, 13.79, 0.47), (14.18, 12.92, 1.39)),
    9: ((14.66, 13.85, 2.31),) * 3,
    15: ((9.665, 8.53, 0.735), (9.665, 8.53, 0.735), (8.90, 8.24, 0.96)),
    16: ((10.88, 9.485, 1.325), (10.88, 9.485, 1.325), (10.14, 9.13, 1.38)),
    17: ((11.0, 9.69, 1.35),) * 3,
    35: ((10.08, 8.47, 1.16),) * 3,
    53: ((9.9, 7.96, 0.96),) * 3,
}.items():
    _ORBITALS[_element - 1] = _by_hybridization
_ELEMENT_NUMBERS = np.array(list(_ELEMENTS.values())) - 1
_N_FEATURES, _N_BOUNDS = len(_FEATURES), len(_PAIR_BOUNDS)
_BOUNDS = np.array(_PAIR_BOUNDS)
_PAIR_INDEX = np.zeros((_N_FEATURES, _N_FEATURES), np.int64)
for _k, (_a, _b) in enumerate(_PAIRS):
    _PAIR_INDEX[_a, _b] = _PAIR_INDEX[_b, _a] = _k


def graph_inputs(arrays: MolArrays) -> np.ndarray:
    """Return the inputs of the base models: counts of Morgan environments, then :func:`graph_descriptors`.

    Returns:
        ``float32 [G, 2048 + F]``.
    """
    return np.concatenate([morgan_counts(arrays), graph_descriptors(arrays)], axis=1, dtype=np.float32)


def graph_descriptors(arrays: MolArrays) -> np.ndarray:
    """Compute the descriptors of molecules.

    Args:
        arrays: G valid molecules: of a preprocessed dataset, or checked by ``chem.molecule.check_molecules``.

    Returns:
        ``float32 [G, F]``, in the order of :data:`GRAPH_DESCRIPTORS`; all finite.
    """
    values = np.zeros((len(arrays), len(GRAPH_DESCRIPTORS)))
    atoms, bonds = np.ascontiguousarray(arrays.atoms), np.ascontiguousarray(arrays.bonds)
    _describe(arrays.atom_ptr, arrays.bond_ptr, atoms, bonds, arrays.bond_type_ids, values)
    return values.astype(np.float32)


@njit(cache=True, nogil=True)
def _describe(atom_ptr, bond_ptr, atoms, bonds, bond_type_ids, out):
    for g in range(len(atom_ptr) - 1):
        begin, end = bond_ptr[g], bond_ptr[g + 1]
        a = atoms[atom_ptr[g] : atom_ptr[g + 1]]
        _describe_molecule(a, bonds[begin:end], bond_type_ids[begin:end], out[g])


@njit(cache=True, nogil=True)
def _describe_molecule(atoms, bonds, type_ids, out):
    n, m = len(atoms), len(bonds)
    ptr = np.zeros(n + 1, np.int64)
    for k in range(m):
        ptr[bonds[k, 0] + 1] += 1
        ptr[bonds[k, 1] + 1] += 1
    for i in range(n):
        ptr[i + 1] += ptr[i]
    fill = ptr[:n].copy()
    near, kind = np.empty(2 * m, np.int64), np.empty(2 * m, np.int64)
    for k in range(m):
        for side in range(2):
            i = bonds[k, side]
            near[fill[i]] = bonds[k, 1 - side]
            kind[fill[i]] = type_ids[k] // _IDS_PER_TYPE
            fill[i] += 1
    distances = _distances(n, ptr, near)
    flags = _groups(atoms, ptr, near, kind, out)
    _bond_counts(atoms, bonds, type_ids, ptr, near, out)
    _topology(atoms, bonds, ptr, near, distances, out)
    charge = _partial_charges(atoms, ptr, near, out)
    state = _states(atoms, ptr, distances, out)
    _surface(atoms, ptr, near, kind, charge, state, out)
    _count_pairs(flags, distances, out)


@njit(cache=True, nogil=True)
def _count_pairs(flags, distances, out):
    """Count the pairs of pharmacophore features on different atoms, by distance."""
    atoms, features = np.nonzero(flags)
    for a in range(len(atoms)):
        for b in range(a + 1, len(atoms)):
            d = distances[atoms[a], atoms[b]]
            if d > 0:
                k = 0
                while k < _N_BOUNDS and d > _BOUNDS[k]:
                    k += 1
                out[_AT.donor_donor_0 + _PAIR_INDEX[features[a], features[b]] * (_N_BOUNDS + 1) + k] += 1


@njit(cache=True, nogil=True)
def _distances(n, ptr, near):
    """Number of bonds between each pair of atoms; -1 between fragments."""
    distances = np.full((n, n), -1, np.int64)
    queue = np.empty(n, np.int64)
    for source in range(n):
        row = distances[source]
        row[source], queue[0] = 0, source
        head, tail = 0, 1
        while head < tail:
            i = queue[head]
            head += 1
            for k in range(ptr[i], ptr[i + 1]):
                j = near[k]
                if row[j] < 0:
                    row[j] = row[i] + 1
                    queue[tail] = j
                    tail += 1
    return distances


@njit(cache=True, nogil=True)
def _groups(atoms, ptr, near, kind, out):
    """Count elements and functional groups; return the pharmacophore features of each atom, bool [n, 6]."""
    n = len(atoms)
    flags = np.zeros((n, _N_FEATURES), np.bool_)
    E = len(_ELEMENT_NUMBERS)
    for i in range(n):
        z, q, h = atoms[i, 0] + 1, np.int64(atoms[i, _CHARGE]) - _NO_CHARGE, np.int64(atoms[i, _HYDROGENS])
        hyb, aromatic, ring = atoms[i, _HYBRIDIZATION], atoms[i, _AROMATIC] == 1, atoms[i, _IN_RING] == 1
        heavy = ptr[i + 1] - ptr[i]
        known = False
        for e in range(E):
            if _ELEMENT_NUMBERS[e] == z - 1:
                out[e] += 1
                known = True
        if not known:
            out[_AT.other_elements] += 1
        out[_AT.atoms] += 1
        out[_AT.hydrogens] += h
        out[_AT.weight] += _MASS[z - 1] + 1.008 * h
        out[_AT.charge] += q
        out[_AT.positive_atoms] += q > 0
        out[_AT.negative_atoms] += q < 0
        out[_AT.radicals] += atoms[i, _RADICALS]
        out[_AT.stereo_atoms] += atoms[i, _CHIRALITY] in (1, 2)
        if aromatic:
            out[_AT.aromatic_C] += z == 6
            out[_AT.aromatic_N] += z == 7
            out[_AT.aromatic_O] += z == 8
            out[_AT.aromatic_S] += z == 16
        if z == 6:
            out[_AT.sp_C] += hyb == _SP
            out[_AT.sp2_C] += hyb == _SP2
            out[_AT.sp3_C] += hyb == _SP3
        out[_AT.ring_atoms] += ring
        out[_AT.fused_atoms] += ring and heavy > 2 and _ring_neighbours(i, atoms, ptr, near) > 2
        out[_AT.quaternary_C] += z == 6 and heavy == 4
        carbonyl_near, sulfonyl_near, aromatic_near, oxygens, double_o = 0, 0, 0, 0, 0
        unsaturated = False
        for k in range(ptr[i], ptr[i + 1]):
            j = near[k]
            zj = atoms[j, 0] + 1
            if zj == 8:
                oxygens += 1
                double_o += kind[k] == _DOUBLE
            aromatic_near += atoms[j, _AROMATIC]
            unsaturated = unsaturated or kind[k] == _DOUBLE or kind[k] == _TRIPLE
            for c in range(ptr[j], ptr[j + 1]):
                if near[c] != i and kind[c] == _DOUBLE and atoms[near[c], 0] + 1 in (8, 16):
                    carbonyl_near += zj == 6
                    sulfonyl_near += zj == 16
        halogen = z in (9, 17, 35, 53)
        donor = z in (7, 8) and h > 0
        # N with a free pair: not amide-like, not pyrrole-like, not positive; O that is no furan.
        acceptor = (z == 8 and not (aromatic)) or (
            z == 7 and q <= 0 and not carbonyl_near and not sulfonyl_near and not (aromatic and (h > 0 or heavy == 3))
        )
        amine = z == 7 and not aromatic and not unsaturated and not carbonyl_near and not sulfonyl_near
        acid_oxygen = z == 8 and heavy == 1 and (h == 1 or q < 0) and carbonyl_near > 0
        flags[i, 0], flags[i, 1] = donor, acceptor
        flags[i, 2] = (q > 0 and not (z == 7 and oxygens)) or (amine and not aromatic_near)
        flags[i, 3] = acid_oxygen or (q < 0 and z in (8, 16))
        flags[i, 4] = aromatic
        flags[i, 5] = (z == 6 and not aromatic and _hetero_neighbours(i, atoms, ptr, near) == 0) or (halogen and z != 9)
        out[_AT.donors] += donor
        out[_AT.acceptors] += acceptor
        out[_AT.NH_OH] += h if z in (7, 8) else 0
        out[_AT.halogens] += halogen
        out[_AT.acids] += acid_oxygen and (h == 1 or q < 0)
        out[_AT.amides] += z == 7 and carbonyl_near > 0
        out[_AT.esters] += z == 8 and heavy == 2 and carbonyl_near > 0
        if z == 6 and double_o == 1 and oxygens == 1 and heavy == 3:
            out[_AT.ketones] += _hetero_neighbours(i, atoms, ptr, near) == 1
        out[_AT.amines] += amine
        out[_AT.alcohols] += z == 8 and h == 1 and heavy == 1 and not carbonyl_near and not aromatic_near
        out[_AT.phenols] += z == 8 and h == 1 and heavy == 1 and aromatic_near > 0
        out[_AT.ethers] += z == 8 and heavy == 2 and not aromatic and not carbonyl_near
        out[_AT.anilines] += amine and aromatic_near > 0
        out[_AT.nitro] += z == 7 and oxygens >= 2
        out[_AT.nitriles] += z == 7 and heavy == 1 and hyb == _SP
        out[_AT.sulfonyls] += z == 16 and double_o == 2
        out[_AT.aromatic_NH] += z == 7 and aromatic and h > 0
    out[_AT.fraction_sp3_C] = out[_AT.sp3_C] / max(1.0, out[_AT.C])
    return flags


@njit(cache=True, nogil=True)
def _ring_neighbours(i, atoms, ptr, near):
    count = 0
    for k in range(ptr[i], ptr[i + 1]):
        count += atoms[near[k], _IN_RING]
    return count


@njit(cache=True, nogil=True)
def _hetero_neighbours(i, atoms, ptr, near):
    count = 0
    for k in range(ptr[i], ptr[i + 1]):
        count += atoms[near[k], 0] != 5
    return count


@njit(cache=True, nogil=True)
def _bond_counts(atoms, bonds, type_ids, ptr, near, out):
    n, m = len(atoms), len(bonds)
    for k in range(m):
        i, j = bonds[k, 0], bonds[k, 1]
        order = type_ids[k] // _IDS_PER_TYPE
        if order < 4:
            out[_AT.single_bonds + order] += 1
        out[_AT.conjugated_bonds] += type_ids[k] % _CONJUGATED
        out[_AT.stereo_bonds] += (type_ids[k] % _IDS_PER_TYPE) // _CONJUGATED in (1, 2)
        in_ring = atoms[i, _IN_RING] == 1 and atoms[j, _IN_RING] == 1
        out[_AT.bonds_of_ring_atoms] += in_ring
        if order == _SINGLE and not in_ring and ptr[i + 1] - ptr[i] > 1 and ptr[j + 1] - ptr[j] > 1:
            out[_AT.flexible_bonds] += 1
    fragments = _fragments(n, ptr, near)
    out[_AT.rings] = m - n + fragments
    out[_AT.fragments] = fragments


@njit(cache=True, nogil=True)
def _fragments(n, ptr, near):
    seen, stack = np.zeros(n, np.bool_), np.empty(n, np.int64)
    count = 0
    for root in range(n):
        if seen[root]:
            continue
        count += 1
        seen[root], stack[0] = True, root
        top = 1
        while top:
            top -= 1
            i = stack[top]
            for k in range(ptr[i], ptr[i + 1]):
                if not seen[near[k]]:
                    seen[near[k]] = True
                    stack[top] = near[k]
                    top += 1
    return count


@njit(cache=True, nogil=True)
def _topology(atoms, bonds, ptr, near, distances, out):
    n, m = len(atoms), len(bonds)
    simple, valence = np.empty(n), np.empty(n)
    for i in range(n):
        z = atoms[i, 0]
        degree = ptr[i + 1] - ptr[i]
        simple[i] = 0.0 if degree == 0 else degree**-0.5
        delta = (_VALENCE[z] - atoms[i, _HYDROGENS]) / max(1.0, z - _VALENCE[z])
        valence[i] = 0.0 if delta <= 0 else delta**-0.5
        out[_AT.chi0] += simple[i]
        out[_AT.chi0v] += valence[i]
        out[_AT.zagreb] += degree * degree
    paths = np.zeros(5)
    for a in range(n):
        for kb in range(ptr[a], ptr[a + 1]):
            b = near[kb]
            s2, v2 = simple[a] * simple[b], valence[a] * valence[b]
            paths[1] += 0.5
            out[_AT.chi1] += 0.5 * s2
            out[_AT.chi1v] += 0.5 * v2
            for kc in range(ptr[b], ptr[b + 1]):
                c = near[kc]
                if c == a:
                    continue
                s3, v3 = s2 * simple[c], v2 * valence[c]
                paths[2] += 0.5
                out[_AT.chi2] += 0.5 * s3
                out[_AT.chi2v] += 0.5 * v3
                for kd in range(ptr[c], ptr[c + 1]):
                    d = near[kd]
                    if d in (a, b):
                        continue
                    s4, v4 = s3 * simple[d], v3 * valence[d]
                    paths[3] += 0.5
                    out[_AT.chi3] += 0.5 * s4
                    out[_AT.chi3v] += 0.5 * v4
                    for ke in range(ptr[d], ptr[d + 1]):
                        e = near[ke]
                        if e in (a, b, c):
                            continue
                        out[_AT.chi4] += 0.5 * s4 * simple[e]
                        out[_AT.chi4v] += 0.5 * v4 * valence[e]
    out[_AT.kappa1] = n * (n - 1.0) ** 2 / max(1.0, paths[1] ** 2)
    out[_AT.kappa2] = (n - 1.0) * (n - 2.0) ** 2 / paths[2] ** 2 if paths[2] else 0.0
    out[_AT.kappa3] = (n - 1.0 - n % 2) * (n - 3.0 + n % 2) ** 2 / paths[3] ** 2 if paths[3] else 0.0
    sums = np.zeros(n)
    wiener, diameter, radius = 0.0, 0, n
    for i in range(n):
        farthest = 0
        for j in range(n):
            if distances[i, j] > 0:
                sums[i] += distances[i, j]
                farthest = max(farthest, distances[i, j])
        wiener += sums[i] / 2
        diameter = max(diameter, farthest)
        radius = min(radius, farthest)
    balaban = 0.0
    for k in range(m):
        balaban += 1 / np.sqrt(sums[bonds[k, 0]] * sums[bonds[k, 1]])
    rings = out[_AT.rings]
    out[_AT.balaban_j] = m / (rings + 1.0) * balaban
    out[_AT.log_wiener] = np.log1p(wiener)
    out[_AT.diameter], out[_AT.radius] = diameter, radius


@njit(cache=True, nogil=True)
def _orbital(z, hyb):
    return _ORBITALS[z, min(max(hyb, 0), 2)]


@njit(cache=True, nogil=True)
def _partial_charges(atoms, ptr, near, out):
    """Partial equalisation of orbital electronegativity; the hydrogens of an atom share one charge."""
    n = len(atoms)
    charge, hydrogen = np.zeros(n), np.zeros(n)
    for i in range(n):
        charge[i] = np.float64(atoms[i, _CHARGE]) - _NO_CHARGE
    # Formal charges of conjugated oxygens and sulfurs are shared.
    for i in range(n):
        if atoms[i, 0] == 5 or atoms[i, 0] == 15:
            total, count = 0.0, 0
            for k in range(ptr[i], ptr[i + 1]):
                j = near[k]
                if atoms[j, 0] == 7 and ptr[j + 1] - ptr[j] == 1 and atoms[j, _HYDROGENS] == 0:
                    total += charge[j]
                    count += 1
            if count > 1 and total != 0:
                for k in range(ptr[i], ptr[i + 1]):
                    j = near[k]
                    if atoms[j, 0] == 7 and ptr[j + 1] - ptr[j] == 1 and atoms[j, _HYDROGENS] == 0:
                        charge[j] = total / count
    chi = np.empty(n)
    damping = 1.0
    for _ in range(_CHARGE_ROUNDS):
        damping *= 0.5
        for i in range(n):
            o = _orbital(atoms[i, 0], atoms[i, _HYBRIDIZATION])
            chi[i] = o[0] + o[1] * charge[i] + o[2] * charge[i] ** 2
        for i in range(n):
            o = _orbital(atoms[i, 0], atoms[i, _HYBRIDIZATION])
            cation = o[0] + o[1] + o[2]
            change = 0.0
            for k in range(ptr[i], ptr[i + 1]):
                j = near[k]
                oj = _orbital(atoms[j, 0], atoms[j, _HYBRIDIZATION])
                difference = chi[j] - chi[i]
                change += difference / (cation if difference > 0 else oj[0] + oj[1] + oj[2])
            h = atoms[i, _HYDROGENS]
            if h > 0:
                ho = _HYDROGEN_ORBITAL
                difference = ho[0] + ho[1] * hydrogen[i] + ho[2] * hydrogen[i] ** 2 - chi[i]
                flow = difference / (cation if difference > 0 else 20.02)
                change += h * flow
                hydrogen[i] -= damping * flow
            charge[i] += damping * change
    out[_AT.max_charge], out[_AT.min_charge], out[_AT.max_hydrogen_charge] = -10.0, 10.0, 0.0
    for i in range(n):
        out[_AT.max_charge] = max(out[_AT.max_charge], charge[i])
        out[_AT.min_charge] = min(out[_AT.min_charge], charge[i])
        out[_AT.sum_of_charge_sizes] += abs(charge[i])
        out[_AT.max_hydrogen_charge] = max(out[_AT.max_hydrogen_charge], hydrogen[i])
    return charge


@njit(cache=True, nogil=True)
def _states(atoms, ptr, distances, out):
    """Electrotopological states."""
    n = len(atoms)
    intrinsic, state = np.empty(n), np.empty(n)
    for i in range(n):
        z = atoms[i, 0]
        degree = max(1, ptr[i + 1] - ptr[i])
        ratio = 2 / _PRINCIPAL[z]
        intrinsic[i] = (ratio * ratio * max(0.0, _VALENCE[z] - atoms[i, _HYDROGENS]) + 1) / degree
    out[_AT.max_state], out[_AT.min_state] = -1e3, 1e3
    for i in range(n):
        total = intrinsic[i]
        for j in range(n):
            d = distances[i, j]
            if d > 0:
                total += (intrinsic[i] - intrinsic[j]) / ((d + 1) * (d + 1))
        state[i] = total
        out[_AT.max_state] = max(out[_AT.max_state], total)
        out[_AT.min_state] = min(out[_AT.min_state], total)
        z = atoms[i, 0] + 1
        if z == 6:
            out[_AT.state_aromatic_C if atoms[i, _AROMATIC] else _AT.state_C] += total
        elif z == 7:
            out[_AT.state_N] += total
        elif z == 8:
            out[_AT.state_O] += total
        elif z == 16:
            out[_AT.state_S] += total
        elif z in (9, 17, 35, 53):
            out[_AT.state_halogen] += total
    return state


@njit(cache=True, nogil=True)
def _polar_area(z, degree, h, q, doubles, triples, aromatics):
    """Contribution of a nitrogen or oxygen to the topological polar surface area."""
    if z == 7:
        if aromatics:
            if aromatics == 3:
                return 4.41 if q <= 0 else 4.10
            if h > 0:
                return 15.79 if q <= 0 else 14.14
            if degree == 2:
                return 12.89
            return 8.39 if doubles else (4.93 if q <= 0 else 3.88)
        if q > 0:
            if triples:
                return 4.36 if degree == 2 else 25.59
            if doubles:
                return (3.01, 3.01, 13.97, 25.59)[min(h + 1, 3)]
            return (0.0, 4.44, 16.61, 27.64)[min(h, 3)]
        if triples:
            return 23.79 if degree == 1 else 13.6
        if doubles:
            if h > 0:
                return 23.85
            return 12.36 if degree == 2 else 11.68
        return (3.24, 12.03, 26.02, 35.0)[min(h, 3)]
    if aromatics:
        return 13.14
    if doubles:
        return 17.07
    if q < 0:
        return 23.06
    return 20.23 if h else 9.23


@njit(cache=True, nogil=True)
def _surface(atoms, ptr, near, kind, charge, state, out):
    """Polar and van der Waals surface areas, the latter also by charge and state."""
    n = len(atoms)
    for i in range(n):
        z = atoms[i, 0]
        r = _RADIUS[z]
        overlap = 0.0
        doubles, triples, aromatics = 0, 0, 0
        for k in range(ptr[i], ptr[i + 1]):
            rj = _RADIUS[atoms[near[k], 0]]
            doubles += kind[k] == _DOUBLE
            triples += kind[k] == _TRIPLE
            aromatics += kind[k] == _AROMATIC_BOND
            shortening = (0.0, 0.2, 0.3, 0.1, 0.0)[kind[k]]
            b = _COVALENT[z] + _COVALENT[atoms[near[k], 0]] - shortening
            d = min(max(abs(r - rj), b), r + rj)
            overlap += (rj * rj - (r - d) ** 2) / d
        h = np.float64(atoms[i, _HYDROGENS])
        b = _COVALENT[z] + 0.33
        d = min(max(abs(r - 1.2), b), r + 1.2)
        overlap += h * (1.44 - (r - d) ** 2) / d
        area = np.pi * r * max(0.0, 4 * r - overlap)
        if z + 1 in (7, 8):
            degree, q = ptr[i + 1] - ptr[i], np.int64(atoms[i, _CHARGE]) - _NO_CHARGE
            out[_AT.tpsa] += _polar_area(z + 1, degree, np.int64(atoms[i, _HYDROGENS]), q, doubles, triples, aromatics)
        out[_AT.surface_area] += area
        out[_AT.charge_area0 + np.searchsorted(_CHARGE_BINS, charge[i], side="right")] += area
        out[_AT.state_area0 + np.searchsorted(_STATE_BINS, state[i], side="right")] += area
