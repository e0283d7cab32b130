from collections import defaultdict
from collections.abc import Hashable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize
from rdkit.Chem.rdMolHash import HashFunction, MolHash
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.chem.hashes import MoleculeHashes, hash_molecules, hash_scaffolds
from graphslice.chem.molecule import MolArrays, MolGraph, read_smiles, smiles_to_graph

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def arrays_of(smiles: Iterable[str], atom_order: str = "canonical") -> MolArrays:
    arrays, reasons, _ = read_smiles(list(smiles), atom_order=atom_order)
    assert not any(reasons)
    return arrays


def hashes_of(*smiles: str) -> MoleculeHashes:
    return hash_molecules(arrays_of(smiles))


def renumbered(graph: MolGraph, order: np.ndarray) -> MolGraph:
    new = np.argsort(order)
    bonds = new[graph.bonds][::-1, ::-1].astype(np.int32)
    return MolGraph(graph.atoms[order], bonds, graph.bond_features[::-1])


def hash_collisions(keys: Iterable[Hashable], others: Iterable[Hashable]) -> list[set[Hashable]]:
    """Collect the sets of several distinct ``others`` that have the same key."""
    by_key = defaultdict(set)
    for key, other in zip(keys, others, strict=True):
        by_key[key].add(other)
    return [collision for collision in by_key.values() if len(collision) > 1]


@pytest.mark.parametrize(
    "smiles",
    [
        [ASPIRIN, "CC(=O)Oc1ccccc1C(=O)[O-].[Na+]", "CC(=O)Oc1ccccc1C(=O)O[Na]", "CC(=O)Oc1ccccc1C(=O)[O-]"],
        ["NCC(=O)O", "[NH3+]CC(=O)[O-]", "[NH3+]CC(=O)O.[Cl-]", "NCC(=O)[O-].[K+]"],
        ["CC(=O)CC", "C=C(O)CC", "CC(O)=CC"], ["C[C@H](N)O", "C[C@@H](N)O", "CC(N)O"],
        ["F/C=C/F", "F/C=C\\F", "FC=CF"], ["Oc1ccccn1", "O=c1cccc[nH]1"],
        ["CC(=O)O", "CC(=O)O[Mg]OC(C)=O", "CC(=O)[O-].[Ca+2].CC(=O)[O-]"],
        ["O", "[2H]O[2H]", "[OH3+]", "[Li+].[OH-]"], ["C[N+](C)(C)C.[Cl-]", "C[N+](C)(C)C.[Br-]"],
    ],
)  # fmt: skip
def test_related_compounds_share_a_family(smiles):
    hashes = hashes_of(*smiles)
    assert len(set(hashes.family.tolist())) == 1 and len(set(hashes.identity.tolist())) == len(smiles)


def test_different_skeletons_or_formulas_have_different_families():
    smiles = ["CCCO", "CC(C)O", "CCOC", "CCCN", "CCC=O", "CCC(=O)O", "C1CCCCC1", "c1ccccc1", "CC1CCCC1", "[H][H]", "Cl"]
    smiles += ["Cc1ccccc1C", "Cc1cccc(C)c1", "Cc1ccc(C)cc1", "CCCCCC", "CCCCC", "[Xe]", "[H+]", "[NH4+]", "F"]
    assert len(set(hashes_of(*smiles).family.tolist())) == len(smiles)


def test_heaviest_fragment_defines_the_family():
    hashes = hashes_of("CCCCO", "CCCCO.CCC", "CCC.CCCCO", "CCCCO.[H+].[Cl-].[Na+]", "CCCCO.CCCCN", "CCCCN.CCCCO")
    assert len(set(hashes.family[:4].tolist())) == 1 and hashes.family[4] == hashes.family[5]
    scaffolds = hash_scaffolds(arrays_of(["C1CC1CCCC.c1ccccc1", "CCCCCCC.c1ccccc1", "CC1CC1", "c1ccccc1C"]))
    assert scaffolds[0] == scaffolds[2] != scaffolds[3] and scaffolds[1] == 0


def test_empty_input_and_invalid_molecules():
    arrays, *_ = read_smiles(["CCO", "oops", "CCN"])
    hashes = hash_molecules(arrays)
    assert hashes.family[1] == 0 and len(set(hashes.family.tolist())) == 3
    assert len(hash_molecules(arrays[:0]).identity) == len(hash_scaffolds(arrays[:0])) == 0


@settings(max_examples=60)
@given(data=st.data())
def test_hashes_do_not_depend_on_numbering(data, demo_smiles):
    graph = smiles_to_graph(
        data.draw(st.sampled_from(demo_smiles)) + data.draw(st.sampled_from(["", ".CCO", ".[Na+]"]))
    )
    order = np.array(data.draw(st.permutations(range(graph.num_atoms))))
    arrays = MolArrays.from_graphs([graph, renumbered(graph, order)])
    (first, second), scaffolds = hash_molecules(arrays).family, hash_scaffolds(arrays)
    assert first == second and scaffolds[0] == scaffolds[1]


@settings(max_examples=60)
@given(data=st.data())
def test_identity_depends_on_every_feature(data, demo_smiles):
    """Identity changes with any feature, bond or atom order, but not with order and direction of bonds."""
    graph = smiles_to_graph(data.draw(st.sampled_from(demo_smiles)))
    atoms, features, bonds = graph.atoms.copy(), graph.bond_features.copy(), graph.bonds.copy()
    atom, feature = data.draw(st.integers(0, len(atoms) - 1)), data.draw(st.integers(0, 8))
    atoms[atom, feature] ^= 1
    changed = [MolGraph(atoms, graph.bonds, graph.bond_features)]
    if graph.num_bonds:
        features[data.draw(st.integers(0, len(features) - 1)), data.draw(st.integers(0, 2))] ^= 1
        changed.append(MolGraph(graph.atoms, graph.bonds, features))
        changed.append(MolGraph(graph.atoms, bonds[1:], graph.bond_features[1:]))
    same = renumbered(graph, np.arange(graph.num_atoms))
    identity = hash_molecules(MolArrays.from_graphs([graph, same, *changed])).identity
    assert identity[0] == identity[1] and len(set(identity.tolist())) == len(changed) + 1


def test_identity_matches_canonical_smiles(demo_smiles):
    """The demo set together with random SMILES of the same molecules."""
    rewritten = [Chem.MolToSmiles(Chem.MolFromSmiles(text), doRandom=True) for text in demo_smiles[:1500]]
    texts = demo_smiles + rewritten
    canonical = [Chem.MolToSmiles(Chem.MolFromSmiles(text)) for text in texts]
    identity = hashes_of(*texts).identity.tolist()
    assert hash_collisions(identity, canonical) == [] == hash_collisions(canonical, identity)


def rdkit_family(text: str) -> tuple[str, str]:
    """RDKit's element graph and the neutralised number of hydrogens of the heaviest fragment."""
    mol = rdMolStandardize.FragmentParent(Chem.MolFromSmiles(text), skipStandardize=True)
    fragments = Chem.GetMolFrags(mol, asMols=True, sanitizeFrags=False)
    mol = max(fragments, key=lambda m: m.GetNumHeavyAtoms())
    hydrogens = sum(a.GetTotalNumHs() - a.GetFormalCharge() for a in mol.GetAtoms())
    return MolHash(mol, HashFunction.ElementGraph), str(hydrogens)


def test_families_match_rdkit(demo_smiles):
    """Compared for molecules with a single fragment; no skeletons of the demo set collide in colour refinement."""
    with rdBase.BlockLogs():
        single_fragment = [text for text in demo_smiles if "." not in text]
        keys = [rdkit_family(text) for text in single_fragment]
    family = hashes_of(*single_fragment).family.tolist()
    assert hash_collisions(keys, family) == []
    assert hash_collisions(family, keys) == []
    assert len(single_fragment) > 4000 and len(set(family)) < len(single_fragment)


def test_colour_refinement_does_not_separate_decalin_and_bicyclopentyl():
    decalin, bicyclopentyl = "C1CCC2CCCCC2C1", "C1CCCC1C2CCCC2"
    family = hashes_of(decalin, bicyclopentyl, "CC1CCC2CCCC2C1").family
    assert family[0] == family[1] != family[2]


def without_charges(scaffold: str) -> str:
    mol = Chem.MolFromSmiles(scaffold, sanitize=False)
    for atom in mol.GetAtoms():
        atom.SetFormalCharge(0)
        atom.SetNumExplicitHs(0)
        atom.SetNoImplicit(True)
    return Chem.MolToSmiles(mol)


def test_scaffolds_match_rdkit(demo_smiles):
    """Compared for single fragments without charges and hydrogens; one pair collides in colour refinement."""
    single_fragment = [text for text in demo_smiles if "." not in text]
    rdkit = [
        MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.MolFromSmiles(t), includeChirality=False) for t in single_fragment
    ]
    rdkit = [without_charges(scaffold) for scaffold in rdkit]
    scaffolds = hash_scaffolds(arrays_of(single_fragment)).tolist()
    assert hash_collisions(rdkit, scaffolds) == []
    assert hash_collisions(scaffolds, rdkit) == [{"C1OCC(C2COCO2)O1", "C1OCC2OCOCC2O1"}]
    assert {text for text, scaffold in zip(rdkit, scaffolds, strict=True) if scaffold == 0} == {""}
