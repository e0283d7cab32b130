"""Molecular graphs against OGB's smiles2graph and RDKit."""

import networkx as nx
import numpy as np
import pytest
from rdkit import Chem
from unusual_molecules import EXTENDED, UNUSUAL

from graphslice import MoleculeError, MolGraph, smiles_to_graph
from graphslice.chem.descriptors import DESCRIPTORS, compute_descriptors
from graphslice.chem.parse import graph_atom_indices, mol_to_smiles, normalize_stereo, parse_molecule

CHIRAL = [
    "C[C@H](O)F", "C[C@H](O)[C@@H](O)[C@H](C)O", "C[C@H]1CC[C@@H](C)CC1", "C[C@@]12CC[C@H](C1)C2(C)C",
    "OC[C@H]1O[C@H](O)[C@H](O)[C@@H](O)[C@@H]1O", "C[S@](=O)c1ccccc1", "C[N@@+](CC)(CCC)c1ccccc1", "[2H][C@](C)(O)F",
    "C/C=C/C[C@H](F)C/C=C\\C", "F[C@H](Cl)Br.F[C@@H](Cl)Br", "N[C@@H](C)C(=O)N[C@@H](C)C(=O)N[C@H](C)C(=O)O",
]  # fmt: skip
# Rings with two sides that differ only in stereo, for which RDKit accepts two sets of tags.
ALIKE_SIDES = [
    "C(C)[N@+]1(C)CC[C@H](CC1)O",
    "C(#N)[C@]1(c2ccc(c(c2)OC2CCCC2)OC)CC[C@@H](CC1)C(=O)O",
    "N[C@]1(C(=O)O)C[C@@H](F)C1",
    "O[C@@H]1C[C@@](O)(C(O)=O)C[C@@H](O)[C@H]1O",
    "O[C@@H]1C2CC3CC(C2)C[C@@H]1C3",
    "O=C1C[C@@H]2C[C@H](C1)C2",
    "C[C@H]1CC[C@@H](C)CC1",
    "[2H][C@]1(N)C[C@@H](F)C1",
]
CHIRALITY = 1
OF_OGB = {name: smiles for name, smiles in {**UNUSUAL, **EXTENDED}.items() if name != "atropisomer"}


@pytest.fixture(scope="module")
def sample(demo_smiles):
    return demo_smiles[::8] + [smiles for smiles in demo_smiles[:1500] if "@" in smiles or "/" in smiles]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, strict=isinstance(value, np.ndarray), err_msg=key)


def same(a: MolGraph, b: MolGraph) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("atoms", "bonds", "bond_features"))


def as_networkx(graph: dict) -> nx.Graph:
    result = nx.Graph()
    result.add_nodes_from((i, {"features": tuple(f)}) for i, f in enumerate(graph["node_feat"]))
    result.add_edges_from(
        (a, b, {"features": tuple(f)}) for (a, b), f in zip(graph["edge_index"].T, graph["edge_feat"], strict=True)
    )
    return result


def random_smiles(smiles: str, number: int) -> list[str]:
    return Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), number, randomSeed=11)


@pytest.mark.parametrize("smiles", OF_OGB.values(), ids=OF_OGB)
def test_input_order_matches_ogb_for_unusual_molecules(smiles, smiles2graph):
    assert_same(smiles_to_graph(smiles, atom_order="input").to_ogb(), smiles2graph(smiles))


def test_input_order_matches_ogb_for_the_demo_set(sample, smiles2graph):
    for smiles in sample:
        assert_same(smiles_to_graph(smiles, atom_order="input").to_ogb(), smiles2graph(smiles))


def test_canonical_order_is_a_renumbering_of_ogb(sample, smiles2graph):
    """The graph is isomorphic to OGB's with equal features, except that CW and CCW may be swapped."""
    for smiles in [*sample[::2], *OF_OGB.values()]:
        ours, theirs = smiles_to_graph(smiles).to_ogb(), smiles2graph(smiles)
        for graph in (ours, theirs):
            tags = graph["node_feat"][:, CHIRALITY]
            tags[tags == 2] = 1
        assert nx.is_isomorphic(as_networkx(ours), as_networkx(theirs), dict.__eq__, dict.__eq__), smiles


def test_random_smiles_give_the_same_graph(demo_smiles):
    for molecules, number in ((demo_smiles[5::35], 3), (CHIRAL, 40), (UNUSUAL.values(), 10)):
        for smiles in molecules:
            graph = smiles_to_graph(smiles)
            for rewritten in random_smiles(smiles, number):
                assert same(smiles_to_graph(rewritten), graph), f"{smiles} {rewritten}"


@pytest.mark.parametrize("smiles", ALIKE_SIDES)
def test_random_smiles_of_rings_with_symmetric_sides_give_the_same_graph(smiles):
    """RDKit distinguishes the two sides by the numbers of the atoms."""
    graph, canonical = smiles_to_graph(smiles), Chem.CanonSmiles(smiles)
    rewritten_smiles = [text for text in random_smiles(smiles, 40) if Chem.CanonSmiles(text) == canonical]
    assert len(set(rewritten_smiles)) > 5
    for rewritten in rewritten_smiles:
        assert same(smiles_to_graph(rewritten), graph), rewritten
        mol = parse_molecule(rewritten, 512)
        places = graph_atom_indices(mol)
        assert sorted(places) == list(range(graph.num_atoms))
        assert graph.atoms[places, 0].tolist() == [atom.GetAtomicNum() - 1 for atom in mol.GetAtoms()]
        ends = {tuple(sorted((places[b.GetBeginAtomIdx()], places[b.GetEndAtomIdx()]))) for b in mol.GetBonds()}
        assert ends == set(map(tuple, graph.bonds.tolist()))


@pytest.mark.parametrize(
    ("labelled", "plain"),
    [
        ("C[13CH2][C@H](O)CCl", "CC[C@H](O)CCl"),
        ("CC[C@H](O)[13CH2]Cl", "CC[C@H](O)CCl"),
        ("[13CH3][C@H](C)O", "CC(C)O"),
        ("[13CH3]/C(C)=C/F", "CC(C)=CF"),
        ("[CH3:7][CH2:1][OH:3]", "CCO"),
    ],
)
def test_isotopes_and_atom_maps_change_neither_graph_nor_descriptors(labelled, plain):
    assert same(smiles_to_graph(labelled), smiles_to_graph(plain))
    kinds = list(DESCRIPTORS)
    found = (compute_descriptors([text], kinds).values() for text in (labelled, plain))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "smiles", ["CC\u041e", "\u0421CO", "C\u0421", "\u0421\u0421\u041e", "CCO\udcff", "CC\uff2f |$a$|", "\u00e9"]
)
def test_non_ascii_letters_are_rejected(smiles):
    with pytest.raises(MoleculeError, match="not a valid SMILES"):
        smiles_to_graph(smiles)


@pytest.mark.parametrize("smiles", ["\ufeffCCO", "CCO\u200b", "\u00a0CCO\u2003", "CCO |$;\u0421;$|"])
def test_invisible_characters_are_ignored(smiles):
    assert same(smiles_to_graph(smiles), smiles_to_graph("CCO"))


@pytest.mark.parametrize(
    "smiles", [s for s in CHIRAL if s not in ("C[C@H]1CC[C@@H](C)CC1", "F[C@H](Cl)Br.F[C@@H](Cl)Br")]
)
def test_enantiomers_stay_different(smiles):
    mirrored = smiles.replace("@@", "%").replace("@", "@@").replace("%", "@")
    assert Chem.CanonSmiles(mirrored) != Chem.CanonSmiles(smiles)
    assert not same(smiles_to_graph(mirrored), smiles_to_graph(smiles))


@pytest.mark.parametrize(
    ("smiles", "diastereomer"),
    [
        ("C[C@H]1CC[C@@H](C)CC1", "C[C@H]1CC[C@H](C)CC1"),
        ("C/C=C/C", "C/C=C\\C"),
        ("C/C=C/C", "CC=CC"),
        ("[2H][C@H](C)O", "[2H][C@@H](C)O"),
    ],
    ids=["cis and trans rings", "E and Z", "E and unknown", "by deuterium"],
)
def test_stereoisomers_stay_different(smiles, diastereomer):
    assert not same(smiles_to_graph(smiles), smiles_to_graph(diastereomer))


def test_atropisomer_has_a_graph_although_ogb_fails(smiles2graph):
    smiles = "Cc1cccc(I)c1-c1c(C)cccc1I |wU:7.6|"
    assert "STEREOATROPCW" in {str(bond.GetStereo()) for bond in Chem.MolFromSmiles(smiles).GetBonds()}
    with pytest.raises(ValueError, match="STEREOATROP"):
        smiles2graph(smiles)
    ours, plain = smiles_to_graph(smiles, atom_order="input").to_ogb(), smiles2graph(smiles.split()[0])
    (changed,) = np.unique(np.flatnonzero((ours["edge_feat"] != plain["edge_feat"]).any(1)) // 2)
    assert ours["edge_feat"][2 * changed].tolist() == [0, 5, 1]  # single, "any" stereo, conjugated
    np.testing.assert_array_equal(ours["node_feat"], plain["node_feat"])
    assert smiles_to_graph(smiles).num_atoms == 16


REASONS = {
    "empty": ["", "  \t", None, float("nan"), 17],
    # The last from reading a file with errors="surrogateescape".
    "not a valid SMILES, but an InChI": ["InChI=1S/CH4/h1H4"],
    "not a valid SMILES, but an InChIKey": ["VNWKTOKETHGBQD-UHFFFAOYSA-N", " VNWKTOKETHGBQD-UHFFFAOYSA-N "],
    "not a valid SMILES, but a CAS number": ["64-17-5"],
    "not a valid SMILES, but a reaction": ["CCO>>CC=O", "[CH3:1][OH:2].O>[Pd]>[CH2:1]=[O:2]"],
    "not a valid SMILES, but a molblock": ["\n\n\n  1  0  0  0\n    0.0  0.0  0.0 C\nM  END\n"],
    "not a valid SMILES, but a name": ["not a molecule", "2-methylpropan-1-ol", "N,N-dimethylformamide (DMF)"],
    "not a valid SMILES: syntax error at character 3": ["C[Xx]"],
    "not a valid SMILES: extra close parentheses at character 6": ["CC(C))C"],
    "not a valid SMILES: extra open parentheses at character 3": ["CC(C"],
    "not a valid SMILES: unclosed ring": ["C1CC"],
    "not a valid SMILES": ["C\udc80C"],
    "a polymer: its brackets .SRU. repeat a unit, and one molecule is needed": ["CCO |Sg:n:0,1::ht|"],
    "a polymer: its brackets .MON. repeat a unit, and one molecule is needed": ["C=C |Sg:mon:0,1::|"],
    "a bond to one of several atoms: give one molecule": ["CO.C1=CC=CC=C1 |m:1:2.3.4|"],
    "an atom with the label 'R1' stands for others: give one molecule": ["CC |$R1;$|"],
    "an atom with the label '_AP1' stands for others: give one molecule": ["CC |$_AP1;$|"],
    "not a valid molecule": ["[#119]", "[CH200]", "[C+128]"],
    "text after a space: 'C'; give the SMILES alone": ["C C"],
    "text after a space: 'ethanol, pure'": ["CCO ethanol, pure "],
    "atom # 0 C, 5": ["C(C)(C)(C)(C)C"],
    "kekulize mol. Unkekulized atoms: 0 1 2 3 4$": ["c1cccc1"],
    "kekulize.*; an aromatic N with a hydrogen is .nH.$": ["c1ccnc1"],
    "wildcard": ["*", "CC[*:1]"],
    "513 atoms, more than the limit of 512": ["C" * 513],
}


@pytest.mark.parametrize(
    ("smiles", "reason"), [(smiles, reason) for reason, texts in REASONS.items() for smiles in texts], ids=repr
)
@pytest.mark.parametrize("order", ["canonical", "input"])
def test_invalid_smiles_gives_the_reason(smiles, reason, order, capfd):
    with pytest.raises(MoleculeError, match=reason) as caught:
        smiles_to_graph(smiles, atom_order=order)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # RDKit's own messages are suppressed


def test_only_molecules_with_symmetric_sides_are_read_twice():
    for smiles in ("C[C@H](O)[C@@H](N)c1ccccc1", "CC(C)[C@H](F)[C@@H]1CCC(C)(C)O1", *ALIKE_SIDES):
        mol = parse_molecule(smiles, 100)
        assert (normalize_stereo(mol)[0] is mol) == (smiles not in ALIKE_SIDES)


def test_graph_if_rdkit_cannot_reparse_its_smiles(monkeypatch):
    def fail(*_):
        raise RuntimeError("Pre-condition Violation")

    monkeypatch.setattr(Chem, "MolToSmiles", fail)
    assert smiles_to_graph(ALIKE_SIDES[0]).num_atoms == 10


@pytest.mark.parametrize("smarts", ["[#6]-[#6]-[#8]", "[#6;R]1CC1", "C[#7H2]"])
def test_smarts_is_no_smiles(smarts):
    with pytest.raises(MoleculeError, match="SMILES"):
        smiles_to_graph(smarts)


def test_query_molecule_has_no_smiles():
    with pytest.raises(MoleculeError, match="a query"):
        mol_to_smiles(Chem.MolFromSmarts("C-,=CO"))
