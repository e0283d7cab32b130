"""Molecules, targets and splits of the pretraining corpus."""

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import Descriptors

from graphslice.chem.descriptors import DESCRIPTORS
from graphslice.config import GraphConfig
from graphslice.data.splits import SPLITS
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.pretraining.corpus import DESCRIPTOR_KINDS, build_corpus, split_by_hash

GRAPH = GraphConfig()


@pytest.fixture(scope="module")
def tables(demo_smiles, tmp_path_factory):
    """Two files with a label each, some common molecules in different SMILES notation, and invalid rows."""
    folder, generator = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    first, second = demo_smiles[:300], demo_smiles[250:400]
    again = [Chem.MolToSmiles(Chem.MolFromSmiles(text), doRandom=True) for text in second]
    gap = np.arange(300.0)
    gap[generator.random(300) < 0.5] = np.nan
    pd.DataFrame({"smiles": [*first, "oops"], "gap": [*gap, 1.0]}).to_csv(folder / "a.csv", index=False)
    pd.DataFrame({"smi": again, "gap": 1000.0, "homo": -1.0}).to_csv(folder / "b.csv", index=False)
    return [folder / "a.csv", folder / "b.csv"], gap


@pytest.fixture(scope="module")
def corpus(tables, tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("made") / "corpus.arrow", tables[0], GRAPH, labels=["gap", "homo"])


def test_corpus_has_every_molecule_once(corpus, demo_smiles):
    different = {Chem.MolToSmiles(Chem.MolFromSmiles(text)) for text in demo_smiles[:400]}
    assert len(corpus.store) == len(different) and corpus.rows == 451 and corpus.unreadable == 1
    assert (corpus.store.sizes > 0).all() and corpus.left_out == 0


def test_labels_are_means_over_duplicate_rows(corpus, tables, demo_smiles):
    """Checked up to the first duplicate, so that rows of the corpus and of the file correspond."""
    gap, found = tables[1], corpus.store.targets
    assert list(corpus.store.info.targets[:2]) == ["gap", "homo"]
    names = [Chem.MolToSmiles(Chem.MolFromSmiles(text)) for text in demo_smiles[:400]]
    order = list(dict.fromkeys(names))
    for i in (0, 7, 260, 299, 350):
        row = order.index(names[i])
        own = [] if i >= 300 or np.isnan(gap[i]) else [gap[i]]
        other = [1000.0] if i >= 250 else []
        np.testing.assert_equal(found[row, 0], np.mean([*own, *other]) if own or other else np.nan)
        np.testing.assert_equal(found[row, 1], -1.0 if i >= 250 else np.nan)


def test_targets_match_rdkit_descriptors(corpus, demo_smiles):
    mols = [Chem.MolFromSmiles(text) for text in demo_smiles[:400]]
    distinct = list(dict.fromkeys(map(Chem.MolToSmiles, mols)))
    weights = np.array([Descriptors.MolWt(Chem.MolFromSmiles(text)) for text in distinct])
    names, targets = corpus.targets, corpus.store.targets
    column = corpus.store.info.targets.index("MolWt")
    t = [task.name for task in names.tasks].index("MolWt")
    expected = ((weights - names.centre[t]) / names.scale[t]).clip(-5, 5)
    np.testing.assert_allclose(targets[:, column], expected, atol=1e-4)
    known = expected[corpus.store.split == SPLITS.index("train")]
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    assert abs(middle) < 0.02 and high - low == pytest.approx(1.349, abs=0.05)


def test_mostly_constant_descriptors_become_binary_targets(corpus):
    for t, (task, column) in enumerate(zip(corpus.targets.tasks, corpus.targets.columns, strict=True)):
        values = corpus.store.targets[:, 2 + t]
        if task.classes:
            assert set(np.unique(values)) == {0.0, 1.0} and 0.003 < values.mean() < 0.997
        else:
            assert np.abs(values).max() <= 5 and np.isnan(corpus.targets.scale[t]) == bool(task.classes)
        assert task.name == [name for kind in DESCRIPTOR_KINDS for name in DESCRIPTORS[kind].names][column]
    assert {task.kind for task in corpus.targets.tasks} == {"regression", "binary"}
    assert len(corpus.store.info.tasks) == sum(bool(task.classes) for task in corpus.targets.tasks)


def test_family_is_in_one_split_independent_of_other_molecules(corpus, tables, tmp_path):
    split = corpus.store.split
    shares = np.bincount(split, minlength=3) / len(split)
    assert shares[0] > 0.85 and shares[1] > 0 and shares[2] > 0
    fewer = build_corpus(tmp_path / "fewer.arrow", tables[0][:1], GRAPH)
    assert np.array_equal(fewer.store.split, split[: len(fewer.store)])
    many = split_by_hash(np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64))
    np.testing.assert_allclose(np.bincount(many, minlength=3) / 1e5, [0.93, 0.02, 0.05], atol=0.005)


def test_excluded_molecules(tables, demo_smiles, tmp_path):
    pd.DataFrame({"smiles": [f"{text}.Cl" for text in demo_smiles[:40]]}).to_csv(tmp_path / "test.csv", index=False)
    made = build_corpus(tmp_path / "rest.arrow", tables[0][:1], GRAPH, without=[tmp_path / "test.csv"])
    assert made.left_out >= 40 and len(made.store) == 300 - made.left_out
    with pytest.raises(InputError, match="too few molecules"):
        build_corpus(tmp_path / "none.arrow", tables[0][:1], GRAPH, without=tables[0][:1])


REJECTED = [
    ("smiles\noops\n", [], "no row can be used; the first: not a valid"),
    ("smiles\nCCO\n", [], "too few"),
    ("smiles,gap,gap\nCCO,1,2\n", ["gap"], "two columns called 'gap'"),
    ("smiles,charge\nCCO,low\n", ["charge"], "the column 'charge' has neither a number for any molecule"),
    (
        'smiles,charge\nCCO,"[0.1, 0.2, -0.3, 0.1]"\n',
        ["charge"],
        "do not say whether it is a target of atoms or of bonds: the first is 4 for 3 atoms and 2 bonds",
    ),
    ('smiles,charge\nC1CC1,"[0.1, 0.2, -0.3]"\n', ["charge"], "do not say whether"),
    ('smiles,charge\noops,"[0.1]"\n', ["charge"], "in a row without a valid SMILES"),
    ("smiles,gap\nCCO,1\n", ["gapp"], r"no input file has a column 'gapp' \(did you mean 'gap'"),
]


@pytest.mark.parametrize(("text", "labels", "message"), REJECTED)
def test_unusable_tables_are_rejected(text, labels, message, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        build_corpus(tmp_path / "x.arrow", [tmp_path / "t.csv"], GRAPH, labels=labels)
    assert not (tmp_path / "x.arrow").exists()


@pytest.fixture(scope="module")
def with_lists(demo_smiles, tmp_path_factory):
    """Half of the molecules have lists, in the atom order of another SMILES than in the first file."""
    folder = tmp_path_factory.mktemp("lists")
    texts = [Chem.MolToSmiles(Chem.MolFromSmiles(text), doRandom=True) for text in demo_smiles[:80]]
    mols = [Chem.MolFromSmiles(text) for text in texts[::2]]
    degrees = [str([atom.GetDegree() for atom in mol.GetAtoms()]) for mol in mols]
    orders = [str([bond.GetBondTypeAsDouble() for bond in mol.GetBonds()]) for mol in mols]
    frame = pd.DataFrame({"smiles": texts[::2], "degree": degrees, "order": orders, "note": "x"})
    frame.loc[1, "degree"] = "[1, 2]"
    frame.loc[2, "order"] = "oops"
    pd.DataFrame({"smiles": demo_smiles[:80], "gap": 1.0}).to_csv(folder / "a.csv", index=False)
    frame.to_csv(folder / "b.csv", index=False)
    return [folder / "a.csv", folder / "b.csv"]


def test_lists_are_atom_and_bond_labels_in_graph_order(with_lists, tmp_path):
    made = build_corpus(tmp_path / "x.arrow", with_lists, GRAPH, labels=["gap", "order", "degree"])
    store = GraphStore.open(made.store.name)
    assert store.info.atom_bond_targets == {"atom": ("degree",), "bond": ("order",)} and made.own == ["gap"]
    assert store.info.targets[0] == "gap" and "degree" not in store.info.targets and made.unlabelled == 2
    atoms, bonds = store.atom_bond_labels("atom"), store.atom_bond_labels("bond")
    for row, graph in enumerate(store):
        labels = atoms[np.array([row])][:, 0]
        assert len(labels) in (0, graph.num_atoms)
        if len(labels):
            np.testing.assert_array_equal(labels, np.bincount(graph.bonds.ravel(), minlength=graph.num_atoms))
        kinds = bonds[np.array([row])][:, 0]
        if len(kinds):
            np.testing.assert_array_equal(kinds, np.array([1, 2, 3, 1.5])[graph.bond_features[:, 0]])
    assert (atoms.counts > 0).sum() == 39 and (bonds.counts > 0).sum() == 39 - (len(store.sizes) < 80)


def test_lists_are_found_far_down_a_file(tmp_path):
    """After empty cells, and after molecules with as many atoms as bonds."""
    rings = [f"C{'C' * i}C1CC1" for i in range(60)]
    counts = [Chem.MolFromSmiles(text).GetNumAtoms() for text in rings]
    lists = [None] * 55 + [str([0.5] * count) for count in counts] + ["[1, 2, 3]"]
    frame = pd.DataFrame({"smiles": ["C" * (3 + i) for i in range(55)] + rings + ["CCO"], "charge": lists})
    for name in ("t.csv", "t.parquet"):
        frame.to_csv(tmp_path / name, index=False) if name == "t.csv" else frame.to_parquet(tmp_path / name)
        made = build_corpus(tmp_path / "x.arrow", [tmp_path / name], GRAPH, labels=["charge"])
        assert made.store.info.atom_targets == ("charge",) and made.unlabelled == 0
        assert (made.store.atom_bond_labels("atom").counts > 0).sum() == 61


def test_labels_of_several_files(demo_smiles, tmp_path):
    """A label may have the name of a descriptor; bounds are counted; contradicting classes are unknown."""
    again = Chem.MolToSmiles(Chem.MolFromSmiles(demo_smiles[0]), doRandom=True)
    pd.DataFrame({"smiles": demo_smiles[:60], "MolWt": [">5", *[5.0] * 59]}).to_csv(tmp_path / "t.csv", index=False)
    active = {"smiles": [*demo_smiles[:60], again], "active": [0, 1] * 30 + [1]}
    pd.DataFrame(active).to_csv(tmp_path / "u.csv", index=False)
    tables = [tmp_path / "t.csv", tmp_path / "u.csv"]
    made = build_corpus(tmp_path / "x.arrow", tables, GRAPH, labels=["MolWt", "active"])
    assert made.store.info.targets.count("MolWt") == 1 and (made.store.targets[1:, 0] == 5).all()
    assert "ExactMolWt" in [task.name for task in made.targets.tasks]
    assert made.unlabelled == 1 and np.isnan(made.store.targets[0, :2]).all()
