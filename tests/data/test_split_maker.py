import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.chem.molecule import read_smiles
from graphslice.config import DataConfig
from graphslice.data import split_maker
from graphslice.data.featurize import molecule_keys
from graphslice.data.split_maker import GroupedRows, SplitMaker
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.tasks import Task

METHODS = ["random", "scaffold", "cluster"]


@pytest.fixture(scope="module")
def make(demo_smiles):
    """``make(smiles, labels, own, **config)``: split molecules, by default 600 of the demo set."""

    def split(smiles=None, labels=None, own=None, check=False, **config):
        smiles = demo_smiles[:600] if smiles is None else smiles
        store = GraphStore.from_arrays(read_smiles(smiles)[0])
        rows = np.flatnonzero(store.sizes)
        families = molecule_keys(store, rows).family
        labels = np.empty((len(rows), 0)) if labels is None else np.array(labels, dtype=float).reshape(len(rows), -1)
        is_class = np.ones(labels.shape[1], bool)
        maker = SplitMaker("t.csv", store, GroupedRows(rows, families, labels, is_class), DataConfig(**config))
        splits = maker.make(own)
        if check:
            maker.check_classes(
                splits["train"], [Task(f"y{k}", "multiclass", tuple("abcd")) for k in range(labels.shape[1])]
            )
        if own is None:
            all_rows = np.concatenate(list(splits.values()))
            assert sorted(all_rows.tolist()) == rows.tolist() and all_rows.dtype == np.int64
        split_families = [set(families[np.searchsorted(rows, members)].tolist()) for members in splits.values()]
        if own is None:
            assert sum(map(len, split_families)) == len(set.union(*split_families)), "a family is divided"
        return splits

    return split


def sizes(splits) -> list[int]:
    return [len(splits[name]) for name in ("train", "valid", "test")]


SALTS = ["CC(=O)Oc1ccccc1C(=O)O", "CC(=O)Oc1ccccc1C(=O)[O-].[Na+]", "NCC(=O)O", "[NH3+]CC(=O)[O-]"]


@pytest.mark.parametrize("method", METHODS)
def test_split_methods_keep_families_together_and_depend_on_the_seed(method, make, demo_smiles):
    smiles = demo_smiles[:500] + [f"{text}.[Na+].[Cl-]" for text in demo_smiles[:100]]  # salts of some
    splits = [make(smiles, split=method, seed=seed) for seed in range(4)]
    assert [sizes(result) for result in splits] == [pytest.approx([480, 60, 60], abs=3)] * 4
    assert len({tuple(result["test"].tolist()) for result in splits}) == 4
    repeated = make(smiles, split=method, seed=0)
    assert all(np.array_equal(repeated[name], splits[0][name]) for name in repeated)
    for result in splits:
        train = set(result["train"].tolist())
        assert all((row in train) == (500 + row in train) for row in range(100))


def test_scaffold_split_divides_no_scaffold(make, demo_smiles):
    connected = [text for text in demo_smiles[:700] if "." not in text]
    splits = make(connected, split="scaffold")
    scaffolds = [
        {
            MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.MolFromSmiles(connected[row]), includeChirality=False)
            for row in rows
        }
        for rows in splits.values()
    ]
    assert all(scaffolds) and sum(map(len, scaffolds)) == len(set.union(*scaffolds)) > 100


def test_too_many_rows_for_the_cluster_split_raise(make, monkeypatch):
    monkeypatch.setattr(split_maker, "MAX_CLUSTERED", 599)
    with pytest.raises(InputError, match=r"t\.csv: .* supports at most 599 rows, not 600: use data.split scaffold"):
        make(split="cluster")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [3, 11])
def test_few_rows_fill_every_split(method, rows, make, demo_smiles):
    ringed = [text for text in demo_smiles if "." not in text and "1" in text][::90]
    result = make(ringed[:rows], split=method)
    assert sizes(result) == pytest.approx([rows - 2, 1, 1], abs=2) and all(sizes(result))


@pytest.mark.parametrize(
    ("smiles", "settings", "reason"),
    [
        (["CCO", "CCN"], {}, "training set would be empty; 2 of 2 rows can be used, of 2 molecules"),
        (SALTS, {}, "test set would be empty; 4 of 4 .* 2 molecules .salts and isomers count as one"),
        (SALTS, {"folds": "4"}, "test set .* 2 molecules .* fewer folds"),
        (["C" * n for n in range(1, 40)], {"split": "scaffold"}, r"of 1 scaffold .* give data\.split random"),
    ],
)
def test_too_few_groups_raise(smiles, settings, reason, make):
    with pytest.raises(InputError, match=reason):
        make(smiles, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_folds_are_disjoint_balanced_and_repeatable(method, make):
    labels = np.arange(600) % 10 == 0
    folds = [make(labels=labels, split=method, folds="5x2", fold=fold) for fold in range(10)]
    for repeat in (folds[:5], folds[5:]):
        tests = np.concatenate([result["test"] for result in repeat])
        assert sorted(tests.tolist()) == list(range(600))
        fold_sizes = sorted(len(result["test"]) for result in repeat)
        if method == "scaffold":  # the group of benzene is larger than a fold and fills one
            assert fold_sizes[-1] > 140 and 105 <= fold_sizes[0] <= fold_sizes[-2] <= 121
        else:
            assert fold_sizes == [120] * 5
        assert all(55 <= len(result["valid"]) <= 65 for result in repeat)
        if method == "random":
            counts = [[labels[members].sum() for members in result.values()] for result in repeat]
            assert counts == [pytest.approx([42, 6, 12], abs=2)] * 5
    assert not np.array_equal(folds[1]["test"], folds[6]["test"])
    assert not np.array_equal(folds[1]["test"], make(split=method, folds="5", fold=1, seed=1)["test"])
    if method != "random":
        return
    assert np.array_equal(folds[1]["valid"], make(labels=labels, split=method, folds="5", fold=1)["valid"])


def test_fold_with_all_rows_of_a_class_raises(make):
    labels = [1] + [0] * 599
    result = [make(labels=labels, folds="3", fold=fold) for fold in range(3)]
    (fold,) = [fold for fold in range(3) if 0 in result[fold]["test"]]
    with pytest.raises(InputError, match="no training row has the class 'b' of the target 'y0', which 1 other row"):
        make(labels=labels, folds="3", fold=fold, check=True)
    make(labels=labels, folds="3", fold=(fold + 1) % 3, check=True)


def rows(*limits: int) -> list[np.ndarray]:
    return [np.arange(begin, end) for begin, end in zip((0, *limits), limits, strict=False)]


@pytest.mark.parametrize(
    ("train", "all_rows", "valid"), [(480, 600, 60), (540, 600, 60), (100, 600, 25), (600, 600, 60)]
)
@pytest.mark.parametrize("method", ["fold", "scaffold"])
def test_missing_validation_set_is_taken_from_training(train, all_rows, valid, method, make):
    own = dict(zip(("train", "test"), rows(train, all_rows), strict=True))
    labels = np.arange(600) % 5 == 0
    result = make(labels=labels, own=own, split=method)
    assert np.array_equal(result["test"], own["test"]) and list(result) == ["train", "valid", "test"]
    assert sorted([*result["train"], *result["valid"]]) == own["train"].tolist()
    assert len(result["valid"]) == pytest.approx(valid, abs=2)
    if method == "fold":
        assert labels[result["valid"]].sum() == pytest.approx(valid / 5, abs=2)
    other = make(labels=labels, own=own, split=method, seed=1)
    assert not np.array_equal(other["valid"], result["valid"])


@pytest.mark.parametrize(
    ("own", "settings", "reason"),
    [
        ({"valid": [1], "test": [0]}, {}, "the training set would be empty; 600 of 600"),
        ({"train": [0], "valid": []}, {}, "the validation set would be empty"),
        ({"train": [0], "valid": [1]}, {"folds": "3"}, r"t\.csv has its own split: leave out data\.folds"),
        ({"train": [0], "valid": [1]}, {"split_sizes": "0.7,0.2,0.1"}, r"leave out data\.split_sizes"),
    ],
)
def test_unusable_splits_of_the_dataset_raise(own, settings, reason, make):
    with pytest.raises(InputError, match=reason):
        make(own={name: np.array(members, dtype=np.int64) for name, members in own.items()}, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_sets_have_the_given_shares(method, make):
    assert sizes(make(split=method, split_sizes="0.5,0.2,0.3")) == [pytest.approx(n, abs=3) for n in (300, 120, 180)]
    first, second = (make(split=method, split_sizes="0.5,0.2,0.3", carve=carve) for carve in (0, 1))
    assert first["test"].tolist() == second["test"].tolist() and first["valid"].tolist() != second["valid"].tolist()
    assert sizes(second) == [pytest.approx(n, abs=3) for n in (300, 120, 180)]
    without_test = make(split=method, split_sizes="0.9,0.1,0")
    assert list(without_test) == ["train", "valid"] and len(without_test["valid"]) == pytest.approx(60, abs=3)
