from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.dataset import LabelledDataset
from graphslice.data.loaders import absolute_dataset, dataset_from_pyg, load_dataset
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError


def write(path: Path, text: str | bytes, targets: str | None = None) -> DataConfig:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return DataConfig(dataset=str(path), targets=targets)


@pytest.fixture
def load(tmp_path):
    """Return ``load(table, suffix, **settings)``, which writes a table to a file and loads it."""

    def make(table: dict, suffix: str = ".csv", **settings: str) -> LabelledDataset:
        path, frame = tmp_path / f"t{suffix}", pd.DataFrame(table)
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
        return load_dataset(DataConfig(dataset=str(path), **settings))

    return make


# --- targets ------------------------------------------------------------------------------------


def test_table_is_loaded(load, tmp_path):
    dataset = load({"name": ["a", "b"], "smiles": ["C", "N"], "y": [1, 2], "split": ["train", "valid"]})
    assert dataset.target_names == ["y"] and dataset.smiles == ["C", "N"] and len(dataset) == 2
    assert dataset.name == str(tmp_path / "t.csv") and dataset.targets.dtype == np.float64
    np.testing.assert_array_equal(dataset.targets, [[1.0], [2.0]])
    several = load({"smiles": ["C"], "y": [1.0], "z": [2.0], "split": ["train"]}, targets="z,y", split="random")
    assert several.target_names == ["z", "y"] and several.targets.tolist() == [[2.0, 1.0]] and several.splits is None


@pytest.mark.parametrize(
    ("table", "targets", "reason"),
    [
        ({"smiles": ["C"], "logp": [1.0]}, "logD", r"no column 'logD' \(did you mean 'logp'\?\)"),
        ({"smiles": ["C"], "y": [1.0]}, "y,y", "names a column twice"),
        ({"smiles": ["C"]}, None, "the columns are none, next to 'smiles'"),
    ],
)
def test_unusable_targets_are_rejected(table, targets, reason, load):
    with pytest.raises(InputError, match=reason):
        load(table, targets=targets)


# --- labels -------------------------------------------------------------------------------------


def test_partially_labelled_rows_are_kept(load):
    """A missing or invalid label does not reject a row that has another one."""
    table = {"smiles": list("CNOFS"), "y": [1, None, None, 4, None], "z": ["5", "6", "", "oops", "?!"]}
    dataset = load(table, targets="y,z")
    expected = [[1, 5], [np.nan, 6], [np.nan, np.nan], [4, np.nan], [np.nan, np.nan]]
    np.testing.assert_array_equal(dataset.targets, expected)
    assert dataset.rejected == {2: "no target value", 4: "target 'z' is not a finite number: '?!'"}
    assert dataset.invalid_labels == {3: "target 'z' is not a finite number: 'oops'"}
    assert dataset.unreadable().keys() == {4}


def test_empty_smiles_become_empty_texts(load):
    table = {"smiles": ["C", None, np.nan], "y": [1, 2, 3]}
    assert load(table, ".csv").smiles == load(table, ".parquet").smiles == ["C", "", ""]


def test_row_numbers_continue_across_chunks(load):
    words = ["train"] * 9_000 + ["valid"]
    dataset = load({"smiles": ["C"] * 9_001, "y": [*range(8_999), "oops", 7], "split": words})
    assert len(dataset) == 9_001 and dataset.targets[8_998:, 0].tolist()[::2] == [8_998, 7]
    assert set(dataset.rejected) == {8_999} and dataset.splits["valid"].tolist() == [9_000]


# --- splits -------------------------------------------------------------------------------------


def row_lists(splits: dict[str, np.ndarray] | None) -> dict[str, list[int]] | None:
    return splits and {name: rows.tolist() for name, rows in splits.items()}


def test_split_column_is_parsed(load):
    words = ["train", "Training", "valid", " VAL ", "test", "train"]
    dataset = load({"smiles": ["C"] * 6, "y": [*range(5), None], "split": words})
    assert row_lists(dataset.splits) == {"train": [0, 1], "valid": [2, 3], "test": [4]}  # row 5 has no label


# --- separate files -----------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Return ``files(main, valid=..., test=..., **settings)``, which loads a dataset of up to three tables."""

    def make(main: dict, valid: dict | None = None, test: dict | None = None, **settings: str) -> LabelledDataset:
        names = {}
        for name, table in {"dataset": main, "valid_file": valid, "test_file": test}.items():
            if table is not None:
                names[name] = str(tmp_path / f"{name}.csv")
                pd.DataFrame(table).to_csv(names[name], index=False)
        return load_dataset(DataConfig(**names, **settings))

    return make


MAIN, VALID = {"smiles": ["C", "N", "O"], "y": [1, None, 3]}, {"y": ["oops", 5], "smiles": ["F", "Cl"]}
TEST = {"smiles": ["CC", "CN"], "more": ["a", "b"], "y": [6, 7]}


def test_separate_files_are_concatenated(files, tmp_path):
    """Row numbers continue; columns are matched by name, and other columns are ignored."""
    dataset = files(MAIN, VALID, TEST)
    assert dataset.name == str(tmp_path / "dataset.csv") and dataset.smiles == ["C", "N", "O", "F", "Cl", "CC", "CN"]
    np.testing.assert_array_equal(dataset.targets[:, 0], [1, np.nan, 3, np.nan, 5, 6, 7])
    assert set(dataset.rejected) == {1, 3} and "'oops'" in dataset.rejected[3]
    assert row_lists(dataset.splits) == {"train": [0, 2], "valid": [4], "test": [5, 6]}
    assert row_lists(files(MAIN, None, TEST).splits) == {"train": [0, 2], "test": [3, 4]}
    assert row_lists(files(MAIN, VALID).splits) == {"train": [0, 2], "valid": [4]}
    assert files(MAIN, VALID, TEST).fingerprint() == dataset.fingerprint() != files(MAIN, None, TEST).fingerprint()


def test_split_column_of_first_file_is_used(files):
    """Split columns of the other files are ignored."""
    main = {**MAIN, "split": ["train", "x", "valid"]}
    test = {**TEST, "split": ["train", "valid"]}
    assert row_lists(files(main, None, test, targets="y").splits) == {"train": [0], "valid": [2], "test": [3, 4]}
    assert row_lists(files(main, VALID, test, targets="y", split="scaffold").splits)["train"] == [0, 2]
    with pytest.raises(InputError, match=r"dataset\.csv already has valid rows: leave out data\.valid_file"):
        files(main, VALID, test, targets="y")


# --- files and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [[7, 9], ["a", "b"], "smiles"])
def test_parquet_with_pandas_index(tmp_path, index):
    """pandas stores its index as an additional column of the file."""
    table = pd.DataFrame({"smiles": ["C", "N"], "y": ["1", "oops"]})
    table = table.set_index("smiles") if index == "smiles" else table.set_index(pd.Index(index))
    table.to_parquet(tmp_path / "t.parquet")
    dataset = load_dataset(DataConfig(dataset=str(tmp_path / "t.parquet"), targets="y"))
    assert dataset.smiles == ["C", "N"] and set(dataset.rejected) == {1}


def test_malformed_rows_are_rejected_with_reason(tmp_path):
    """Their cells are neither used as labels nor considered in the inference of the target."""
    content = "smiles,y,note,split\nC,1,a,train\nN,2\nO,3,4,5,6\nF,x,b,valid\nCl,6,c,valid\n"
    dataset = load_dataset(write(tmp_path / "t.csv", content))
    assert dataset.target_names == ["y"] and dataset.smiles == ["C", "", "", "F", "Cl"]
    np.testing.assert_array_equal(dataset.targets[:, 0], [1, np.nan, np.nan, np.nan, 6])
    assert dataset.rejected == {
        1: "2 fields where the header has 4 (line 3 of t.csv)",
        2: "5 fields where the header has 4 (line 4 of t.csv)",
        3: "target 'y' is not a finite number: 'x'",
    }
    assert dataset.unreadable() == dataset.rejected
    assert row_lists(dataset.splits) == {"train": [0], "valid": [4]}


def test_dataset_name_takes_precedence_over_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "t.csv").touch()
    names = ("demo", "pcqm4m", "t.csv", "absent.csv")
    assert [absolute_dataset(name) for name in names] == ["demo", "pcqm4m", str(tmp_path / "t.csv"), "absent.csv"]


def test_fingerprint_depends_on_molecules_and_labels(load):
    table = {"smiles": ["C", "N"], "y": [1.0, 2.0]}
    same = load(table).fingerprint()
    assert load(table).fingerprint() == same
    assert load({**table, "y": [1.0, 2.5]}).fingerprint() != same
    assert load({**table, "smiles": ["C", "O"]}).fingerprint() != same
    assert load({"smiles": ["N", "C"], "y": [2.0, 1.0]}).fingerprint() != same


# --- stores -------------------------------------------------------------------------------------

TABLE = {
    "smiles": ["C", "N", "oops", "", "O"],
    "y": ["1", "oops", "", "-2e3", "inf"],
    "z": ["5", "6", "7", "", "9"],
    "split": ["train", "VAL", " test ", "training", "dev"],
}


def stored(folder, table: dict, labels: str | None = "y,z", **settings):
    """Featurize a table with some labels and load the store."""
    pd.DataFrame(table).to_csv(folder / "t.csv", index=False)
    config = DataConfig(str(folder / "t.csv"), targets=labels)
    featurize_dataset(config, GraphConfig(), folder / "t.arrow", workers=1, overwrite=True)
    return load_dataset(DataConfig(str(folder / "t.arrow"), **settings))


def test_store_matches_table(load, tmp_path):
    dataset, table = stored(tmp_path, TABLE), load(TABLE, targets="y,z")
    assert dataset.name == str(tmp_path / "t.arrow") and len(dataset) == 5 and dataset.target_names == ["y", "z"]
    assert list(dataset.smiles) == table.smiles and dataset.store.sizes.tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_array_equal(dataset.targets, table.targets)
    assert set(dataset.rejected) == {2, 3}  # two invalid SMILES
    assert dataset.invalid_labels == table.invalid_labels and set(table.invalid_labels) == {1, 4}
    assert row_lists(dataset.splits) == {"train": [0], "valid": [1, 4], "test": []}
    one = stored(tmp_path, TABLE, targets="y")  # the other target does not matter
    assert set(one.rejected) == {1, 2, 3, 4} and not one.invalid_labels
    assert not stored(tmp_path, TABLE, targets="z").invalid_labels


@pytest.mark.parametrize(("targets", "names"), [("z", ["z"]), ("z,y", ["z", "y"]), (None, ["y", "z"])])
def test_selected_targets_of_store(targets, names, load, tmp_path):
    table = {"smiles": ["C", "N", "O"], "y": [1, None, None], "z": [None, 5, None]}
    dataset = stored(tmp_path, table, targets=targets)
    assert dataset.target_names == names
    expected = load(table, targets=",".join(names))
    np.testing.assert_array_equal(dataset.targets, expected.targets)
    assert dataset.rejected == expected.rejected and dataset.rejected[2] == "no target value"


@pytest.mark.parametrize("split", [None, "split", "random"])
def test_split_of_store_is_used(split, tmp_path):
    words = ["test", "train", "valid", "train", "test"]
    dataset = stored(
        tmp_path, {"smiles": ["C", "N", "O", "F", "oops"], "y": range(5), "split": words}, "y", split=split
    )
    assert row_lists(dataset.splits) == (None if split == "random" else {"train": [1, 3], "valid": [2], "test": [0]})


@pytest.mark.parametrize(
    ("table", "labels", "settings", "reason"),
    [
        (TABLE, None, {}, r"t\.arrow has the molecule-level targets none: .* run graphslice featurize with --targets"),
        (TABLE, "y,z", {"targets": "yy"}, r"no column 'yy' .did you mean 'y'.*it has 'y', 'z'"),
        (TABLE, "y,z", {"split": "fold"}, "must be random, scaffold, cluster or split, not 'fold'"),
        ({"smiles": ["C"], "y": [1]}, "y", {"split": "split"}, "must be random, scaffold or cluster, not 'split'"),
        (TABLE, "y,z", {"id_column": "z"}, r"data\.id_column needs a table of molecules, which .*t\.arrow is not"),
        (TABLE, "y,z", {"test_file": "t.csv"}, r"data\.test_file needs a table of molecules"),
    ],
)
def test_unusable_stores_are_rejected(table, labels, settings, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        stored(tmp_path, table, labels, **settings)


# --- PyG ----------------------------------------------------------------------------------------


def pyg(smiles: str, *y: float):
    data = gs.smiles_to_graph(smiles).to_pyg()
    data.y = torch.tensor([y])
    return data


def load_pyg(items, **settings):
    return dataset_from_pyg(items, DataConfig(**settings))


def test_pyg_dataset_is_loaded():
    broken = pyg("CC", 9.0)
    broken.x = broken.x[:, :3]
    unlabelled = gs.smiles_to_graph("CCC").to_pyg()
    unlabelled.y = None
    dataset = load_pyg([pyg("CCO", 1.0), broken, pyg("C", np.nan), pyg("N", 1e30), unlabelled, pyg("O", 2.0)])
    assert dataset.name == "pyg" and dataset.target_names == ["y"] and len(dataset) == 6
    assert set(dataset.rejected) == {1, 2, 3, 4} and "not integers" in dataset.rejected[1]
    assert [g.num_atoms for g in dataset.graphs] == [3, 0, 1, 1, 3, 1]
    np.testing.assert_array_equal(dataset.targets[[0, 5]], [[1.0], [2.0]])


@pytest.mark.parametrize("names", [None, "gap,dipole"])
def test_pyg_targets_are_named(names):
    dataset = load_pyg((pyg(s, 1.0, 2.0) for s in ("C", "N")), targets=names)
    assert dataset.target_names == (names or "y0,y1").split(",")
    assert dataset.targets.shape == (2, 2) and not dataset.rejected


def test_pyg_classes_are_indices():
    dataset = load_pyg([pyg("C", 7.0), pyg("N", 3.0), pyg("O", 7.0)], task="binary")
    assert dataset.tasks[0].classes == ("3", "7") and dataset.targets[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_unusable_pyg_data_is_rejected():
    with pytest.raises(InputError, match="no row can be used; the first: no target value"):
        load_pyg([pyg("C", np.nan)])
    with pytest.raises(InputError, match=r"data.split of the PyG dataset must be random, scaffold or cluster"):
        load_pyg([pyg("C", 1.0)], split="scafold")
    with pytest.raises(InputError, match="1 names for 2 targets: gap"):
        load_pyg([pyg("C", 1.0, 2.0)], targets="gap")
