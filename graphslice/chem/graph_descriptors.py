"""Descriptors of molecular graphs, compiled with numba: a few microseconds a molecule, without RDKit or a SMILES.

They are counts of atoms, bonds and functional groups, connectivity indices, surface areas, partial charges,
electrotopological states, and counts of pairs of pharmacophore features by distance. Every value is a function of the
arrays of a molecule, so it does not depend on the SMILES notation where the atom order does not.

Sources: Kier and Hall 1986 (chi, kappa), Balaban 1982 (J), Ertl et al. 2000 (TPSA), Labute 2000 (surface area), Hall
and Kier 1995 (E-state), Gasteiger and Marsili 1980 (charges), Stiefl et al. 2006 (pairs of features). Where the
definition is simpler than that of RDKit (functional groups, acceptors, charges of conjugated ions, kappa without alpha,
J without bond orders), or another (kappa3 exchanges the factors of odd and even numbers of atoms), values differ for
some molecules; tests/chem/test_graph_descriptors.py says which are equal. Isotopes are not distinguished. Hydrogens
that are atoms of the graph count as atoms.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from graphslice.chem import element_tables as el
from graphslice.chem.fingerprints import morgan_counts
from graphslice.chem.molecule import MolArrays
from graphslice.chem.path_search import set_neighbours
from graphslice.feature_dims import ATOM_DIMS, BOND_DIMS

_ELEMENTS = {"C": el.C, "N": el.N, "O": el.O, "F": el.F, "Si": el.SI, "P": el.P, "S": el.S, "Cl": el.CL, "Br": el.BR}
_ELEMENTS |= {"I": el.I, "B": el.B}
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
_ELEMENT_AT = el.table({i: getattr(_AT, name) for name, i in _ELEMENTS.items()}, _AT.other_elements, np.int64)
# Position of the sum of E-states by element; -1 for elements without one.
_STATE_AT = el.table({el.C: _AT.state_C, el.N: _AT.state_N, el.O: _AT.state_O, el.S: _AT.state_S}, -1, np.int64)
_STATE_AT[el.IS_HALOGEN] = _AT.state_halogen
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
_H_ORBITAL, _H_RESISTANCE = tuple(el.ORBITALS[el.H, _SP3].tolist()), 1 / el.CATION[el.H, _SP3]
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
        ``float32 [G, F]``, in the order of :data:`GRAPH_DESCRIPTORS`; finite, and at most 1e6 in magnitude. A molecule
        without atoms, which stands for an invalid one, has zeros.
    """
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
    in_ring = _find_rings(bonds, near, out)
    counts = _count_neighbours(atoms, bonds, type_ids, in_ring)
    distances = _distances(near)
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
def _find_rings(bonds, near, out):
    """Count rings (the cyclomatic number) and fragments; return which bonds are in rings, bool [M].

    Each bond outside a spanning forest closes a ring, with the path between its ends in the forest.
    """
    n, m = len(near.ptr) - 1, len(bonds)
    depth, parent, stack = np.full(n, -1, np.int32), np.full(n, -1, np.int32), np.empty(n, np.int32)
    fragments = 0
    for root in range(n):
        if depth[root] >= 0:
            continue
        fragments += 1
        depth[root], stack[0] = 0, root
        height = 1
        while height:
            height -= 1
            i = stack[height]
            for e in range(near.ptr[i], near.ptr[i + 1]):
                j = near.atoms[e]
                if depth[j] < 0:
                    depth[j], parent[j] = depth[i] + 1, i
                    stack[height] = j
                    height += 1
    in_ring, parent_in_ring = np.zeros(m, np.bool_), np.zeros(n, np.bool_)  # parent: the bond to the parent
    for k in range(m):
        i, j = bonds[k, 0], bonds[k, 1]
        if parent[i] != j and parent[j] != i:
            in_ring[k] = True
            while i != j:
                if depth[i] < depth[j]:
                    i, j = j, i
                parent_in_ring[i] = True
                i = parent[i]
    for k in range(m):
        i, j = bonds[k, 0], bonds[k, 1]
        in_ring[k] |= (parent[i] == j and parent_in_ring[i]) or (parent[j] == i and parent_in_ring[j])
    out[_AT.rings], out[_AT.fragments] = m - n + fragments, fragments
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
            counts[i, _HETERO] += element not in (el.C, el.H)
            counts[i, _AROMATIC_NEAR] += atoms[j, _AROMATIC]
            counts[i, _OXYGENS] += element == el.O
            counts[i, _OXO] += order == _DOUBLES and element == el.O
            counts[i, _DOUBLE_OS] += order == _DOUBLES and element in (el.O, el.S)
    for k in range(len(bonds)):
        for side in range(2):
            i, j = bonds[k, side], bonds[k, 1 - side]
            element = atoms[j, _ELEMENT]
            if element in (el.C, el.S):
                itself = type_ids[k] // _IDS_PER_TYPE == _DOUBLES and atoms[i, _ELEMENT] in (el.O, el.S)
                counts[i, _CARBONYLS if element == el.C else _SULFONYLS] += counts[j, _DOUBLE_OS] - itself
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
    """Count atoms by element, charge, hybridization and rings."""
    out[_AT.atoms] = len(atoms)
    for i in range(len(atoms)):
        element, charge = atoms[i, _ELEMENT], _FORMAL_CHARGE[atoms[i, _CHARGE]]
        out[_ELEMENT_AT[element]] += 1
        out[_AT.hydrogens] += atoms[i, _HYDROGENS]
        out[_AT.weight] += el.MASS[element] + el.MASS[el.H] * atoms[i, _HYDROGENS]
        out[_AT.charge] += charge
        out[_AT.positive_atoms] += charge > 0
        out[_AT.negative_atoms] += charge < 0
        out[_AT.radicals] += atoms[i, _RADICALS]
        out[_AT.stereo_atoms] += atoms[i, _CHIRALITY] in (1, 2)
        out[_AT.ring_atoms] += atoms[i, _IN_RING]
        out[_AT.fused_atoms] += counts[i, _RING_BONDS] > 2
        out[_AT.halogens] += el.IS_HALOGEN[element]
        if atoms[i, _AROMATIC]:
            out[_AT.aromatic_C] += element == el.C
            out[_AT.aromatic_N] += element == el.N
            out[_AT.aromatic_O] += element == el.O
            out[_AT.aromatic_S] += element == el.S
        if element == el.C:
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
        if element == el.C:
            features[i, _HYDROPHOBIC] = not aromatic and counts[i, _HETERO] == 0
            out[_AT.ketones] += not aromatic and degree == 3 and counts[i, _OXO] == 1 and counts[i, _HETERO] == 1
        elif element == el.N:
            _count_nitrogen(i, degree, charge, atoms, counts, features, out)
        elif element == el.O:
            _count_oxygen(i, degree, charge, atoms, counts, features, out)
        elif element == el.S:
            features[i, _NEGATIVE] = charge < 0
            out[_AT.sulfonyls] += counts[i, _OXO] == 2
        elif el.IS_HALOGEN[element]:
            features[i, _HYDROPHOBIC] = element != el.F
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
        delta = (el.VALENCE_ELECTRONS[element] - atoms[i, _HYDROGENS]) / el.INNER_ELECTRONS[element]
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
    """Add the products of the weights along all paths of 0 to 4 bonds, from descriptor ``first`` on.

    Returns:
        The numbers of paths of 2 and 3 bonds.
    """
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

    In each round, charge flows along every bond from the less electronegative atom to the other one. The flow is the
    difference of their electronegativities divided by that of the donor's cation, and halved from round to round. The
    hydrogens of an atom, which are no atoms of the graph, share one charge.
    """
    n = len(atoms)
    charges, hydrogens = _shared_charges(atoms, near), np.zeros(n)
    num_hydrogens, negativities, changes = np.empty(n), np.empty(n), np.empty(n)
    a, b, c, resistances = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        element, hybridization = atoms[i, _ELEMENT], min(atoms[i, _HYBRIDIZATION], _SP3)
        num_hydrogens[i] = atoms[i, _HYDROGENS]
        resistances[i] = 1 / el.CATION[element, hybridization]
        a[i], b[i], c[i] = el.ORBITALS[element, hybridization]
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
        if atoms[center, _ELEMENT] in (el.C, el.N, el.P, el.S):
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
    return atoms[i, _ELEMENT] == el.O and near.ptr[i + 1] - near.ptr[i] == 1 and atoms[i, _HYDROGENS] == 0


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
        electrons = max(0.0, el.VALENCE_ELECTRONS[element] - atoms[i, _HYDROGENS])
        states[i] = intrinsic[i] = ((2 / el.QUANTUM_NUMBER[element]) ** 2 * electrons + 1) / degree
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
        if element not in (el.N, el.O):
            continue
        neighbours = near.atoms[near.ptr[i] : near.ptr[i + 1]]
        degree, hydrogens, in_three_ring = len(neighbours), np.int64(atoms[i, _HYDROGENS]), 0
        for a in range(len(neighbours)):
            if atoms[neighbours[a], _ELEMENT] == el.H:
                degree, hydrogens = degree - 1, hydrogens + 1
            for b in range(a):
                if distances[neighbours[a], neighbours[b]] == 1:
                    in_three_ring = 1
        doubles, triples, aromatics = counts[i, _DOUBLES], counts[i, _TRIPLES], counts[i, _AROMATICS]
        charge, key = _FORMAL_CHARGE[atoms[i, _CHARGE]] + 5, np.int64(0)
        for digit in (element, degree, hydrogens, charge, doubles, triples, aromatics, in_three_ring):
            key = key << 4 | min(digit, 15)
        at = np.searchsorted(el.POLAR_KEYS, key)
        if at < len(el.POLAR_KEYS) and el.POLAR_KEYS[at] == key and counts[i, _OTHERS] == 0:
            out[_AT.tpsa] += el.POLAR_AREAS[at]
        else:
            first, less = (30.5, 8.2) if element == el.N else (28.5, 8.6)
            out[_AT.tpsa] += max(0.0, first - less * degree + 1.5 * hydrogens)


@njit(cache=True, nogil=True)
def _surface(atoms, bonds, type_ids, charges, states, out):
    """Van der Waals surface area (Angstrom^2), also by partial charge and by E-state of the atom.

    The sphere of an atom loses what lies within the spheres of its neighbours and hydrogens.
    """
    n = len(atoms)
    overlap = np.empty(n)
    for i in range(n):
        element = atoms[i, _ELEMENT]
        length = el.COVALENT_RADIUS[element] + el.COVALENT_RADIUS[el.H]
        overlap[i] = atoms[i, _HYDROGENS] * _overlap(el.RADIUS[element], el.RADIUS[el.H], length)
    for k in range(len(bonds)):
        i, j = bonds[k, 0], bonds[k, 1]
        a, b = atoms[i, _ELEMENT], atoms[j, _ELEMENT]
        length = el.COVALENT_RADIUS[a] + el.COVALENT_RADIUS[b] - _BOND_SHORTENING[type_ids[k] // _IDS_PER_TYPE]
        overlap[i] += _overlap(el.RADIUS[a], el.RADIUS[b], length)
        overlap[j] += _overlap(el.RADIUS[b], el.RADIUS[a], length)
    for i in range(n):
        radius = el.RADIUS[atoms[i, _ELEMENT]]
        area = np.pi * radius * max(0.0, 4 * radius - overlap[i])
        out[_AT.surface_area] += area
        out[_AT.charge_area0 + _bin(charges[i], _CHARGE_BOUNDS)] += area
        out[_AT.state_area0 + _bin(states[i], _STATE_BOUNDS)] += area


@njit(cache=True, nogil=True)
def _overlap(radius, other, length):
    """Height (times 2) of the cap of a sphere that lies within the sphere of another radius at a distance."""
    length = min(max(abs(radius - other), length), radius + other)
    return (other * other - (radius - length) ** 2) / length


@njit(cache=True, nogil=True)
def _bin(value, bounds):
    """Number of bounds that are not above a value."""
    index = 0
    for bound in bounds:
        index += value >= bound
    return index
