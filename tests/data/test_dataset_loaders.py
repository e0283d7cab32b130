from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.config import DataConfig, GraphConfig, RunConfig
from graphslice.data.dataset_loaders import absolute_dataset, load_dataset
from graphslice.data.featurize import featurize_dataset
from graphslice.data.finalize_config import finalize_config
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.pyg_dataset import dataset_from_pyg
from graphslice.errors import InputError


def write(path: Path, text: str | bytes, targets: str | None = None) -> DataConfig:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return DataConfig(dataset=str(path), targets=targets)


@pytest.fixture
def source(tmp_path):
    """``source(table, suffix, **settings)``: the source that is a file of that table."""

    def make(table: dict, suffix: str = ".csv", **settings: str) -> LabelledDataset:
        path, frame = tmp_path / f"t{suffix}", pd.DataFrame(table)
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
        return load_dataset(DataConfig(dataset=str(path), **settings))

    return make


# --- targets ------------------------------------------------------------------------------------


def test_a_table(source, tmp_path):
    found = source({"name": ["a", "b"], "smiles": ["C", "N"], "y": [1, 2], "split": ["train", "valid"]})
    assert found.target_names == ["y"] and found.smiles == ["C", "N"] and len(found) == 2
    assert found.name == str(tmp_path / "t.csv") and found.targets.dtype == np.float64
    np.testing.assert_array_equal(found.targets, [[1.0], [2.0]])


def test_given_targets(source):
    found = source({"smiles": ["C"], "y": [1.0], "z": [2.0], "a,b": [3.0]}, targets="z,y")
    assert found.target_names == ["z", "y"]
    np.testing.assert_array_equal(found.targets, [[2.0, 1.0]])


@pytest.mark.parametrize(
    ("table", "targets", "reason"),
    [
        ({"smiles": ["C"], "logp": [1.0]}, "logP", r"no column 'logP' \(did you mean 'logp'\?\)"),
        ({"smiles": ["C"], "y": [1.0]}, "y,y", "names a column twice"),
        ({"smiles": ["C"], "y": [1.0], "z": [2.0]}, None, "which columns are the targets.*--targets.*'y', 'z'"),
        ({"smiles": ["C"]}, None, "has no column that could be predicted, only 'smiles'"),
        ({"smiles": ["C", "N", "O"], "y": ["a", "b", "c"]}, None, "'y' is not numeric.*'a'.* too many different words"),
        ({"smiles": ["C", "N"], "y": [None, "low"]}, "y", "'y' is 'low' in every row .* nothing to learn"),
        ({"smiles": ["C", "N"], "y": [np.nan, np.nan]}, "y", "'y' is empty in every row"),
        ({"smiles": ["C", "N"], "y": ["", " "]}, "y", "'y' is empty in every row"),
        ({"smiles": ["C", "N"], "y": [np.inf, -np.inf]}, "y", "'y' is not numeric"),
    ],
)
def test_targets_of_no_use(table, targets, reason, source):
    with pytest.raises(InputError, match=reason):
        source(table, targets=targets)


# --- labels -------------------------------------------------------------------------------------


def test_rows_without_a_usable_label(source):
    found = source({"smiles": list("CNOFC"), "y": ["1.5", "n/d", "", "inf", "-2e3"]})
    assert set(found.rejected) == {1, 2, 3}
    assert "not a finite number: 'n/d'" in found.rejected[1]
    assert found.rejected[2] == "no target value"
    assert "not a finite number: 'inf'" in found.rejected[3]
    np.testing.assert_array_equal(found.targets, [[1.5], [np.nan], [np.nan], [np.nan], [-2000.0]])


def test_several_targets_with_gaps(source):
    """A gap is no reason to lose the row; a wrong text or no label at all is."""
    table = {"smiles": list("CNOF"), "y": [1, None, None, 4], "z": ["5", "6", "", "oops"]}
    found = source(table, targets="y,z")
    np.testing.assert_array_equal(found.targets, [[1, 5], [np.nan, 6], [np.nan, np.nan], [4, np.nan]])
    assert set(found.rejected) == {2, 3} and "'z'" in found.rejected[3]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_empty_smiles_become_empty_texts(suffix, source):
    assert source({"smiles": ["C", None, np.nan], "y": [1, 2, 3]}, suffix).smiles == ["C", "", ""]


def test_a_boolean_target_is_a_number(source):
    found = source({"smiles": ["C", "N"], "y": [True, False]}, ".parquet")
    np.testing.assert_array_equal(found.targets, [[1.0], [0.0]])


def test_a_table_of_several_chunks(source):
    """Rows are counted on from chunk to chunk."""
    words = ["train"] * 9_000 + ["valid"]
    found = source({"smiles": ["C"] * 9_001, "y": [*range(8_999), "oops", 7], "split": words})
    assert len(found) == 9_001 and found.targets[8_998:, 0].tolist()[::2] == [8_998, 7]
    assert set(found.rejected) == {8_999} and found.splits["valid"].tolist() == [9_000]


# --- splits -------------------------------------------------------------------------------------


def named(splits: dict[str, np.ndarray] | None) -> dict[str, list[int]] | None:
    return splits and {name: rows.tolist() for name, rows in splits.items()}


def test_a_split_column(source):
    words = ["train", "Training", "valid", " VAL ", "test", "train"]
    found = source({"smiles": ["C"] * 6, "y": [*range(5), None], "split": words})
    assert named(found.splits) == {"train": [0, 1], "valid": [2, 3], "test": [4]}  # row 5 has no label


def test_a_given_split_column(source):
    found = source({"smiles": ["C"] * 2, "y": [1, 2], "fold": ["test", "train"]}, split="fold")
    assert named(found.splits) == {"train": [1], "test": [0]}


@pytest.mark.parametrize("word", ["holdout", None, 3])
def test_a_word_that_names_no_split(word, source):
    with pytest.raises(InputError, match=r"row 2: 'split' is .*; it must be train, valid or test"):
        source({"smiles": ["C", "N"], "y": [1, 2], "split": ["train", word]}, targets="y")


@pytest.mark.parametrize("split", ["random", "scaffold"])
def test_a_split_method_comes_before_the_column(split, source):
    assert source({"smiles": ["C"], "y": [1], "split": ["train"]}, split=split, targets="y").splits is None


def test_unknown_split(source):
    with pytest.raises(InputError, match=r"unknown split 'randm'.*did you mean 'random'"):
        source({"smiles": ["C"], "y": [1]}, split="randm")


# --- separate files -----------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """``files(main, valid=..., test=..., **settings)``: the source of up to three tables."""

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


def test_separate_files(files, tmp_path):
    """Rows are counted on; columns are found by their names, and those of no use left alone."""
    found = files(MAIN, VALID, TEST)
    assert found.name == str(tmp_path / "dataset.csv") and found.smiles == ["C", "N", "O", "F", "Cl", "CC", "CN"]
    np.testing.assert_array_equal(found.targets[:, 0], [1, np.nan, 3, np.nan, 5, 6, 7])
    assert set(found.rejected) == {1, 3} and "'oops'" in found.rejected[3]
    assert named(found.splits) == {"train": [0, 2], "valid": [4], "test": [5, 6]}
    assert named(files(MAIN, None, TEST).splits) == {"train": [0, 2], "test": [3, 4]}
    assert named(files(MAIN, VALID).splits) == {"train": [0, 2], "valid": [4]}
    assert files(MAIN, VALID, TEST).fingerprint() == found.fingerprint() != files(MAIN, None, TEST).fingerprint()


def test_separate_files_and_a_column(files):
    """The column of the first file counts, those of the others do not."""
    main = {**MAIN, "split": ["train", "x", "valid"]}
    test = {**TEST, "split": ["train", "valid"]}
    assert named(files(main, None, test, targets="y").splits) == {"train": [0], "valid": [2], "test": [3, 4]}
    assert named(files(main, VALID, test, targets="y", split="scaffold").splits)["train"] == [0, 2]
    with pytest.raises(
        InputError, match=r"the split column of .*dataset\.csv already has valid rows: leave out valid_file"
    ):
        files(main, VALID, test, targets="y")


def test_what_has_no_logarithm_is_found_in_each_file(files):
    main = {"smiles": ["C", "N"], "y": [1, 3]}
    assert len(files(main, VALID, TEST, transform="log")) == 6
    for at in ("valid", "test"):
        with pytest.raises(InputError, match=rf"{at}_file\.csv: the target 'y' is 0 in row 2, which has no logarithm"):
            files(main, **{at: {"smiles": ["O", "C", "F"], "y": [None, 0, 1]}}, transform="log")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"test_file": "absent.csv"}, "no file at .*absent.csv"),
        ({"test_file": "demo"}, "demo is not a table: valid_file and test_file need tables"),
        ({"valid_file": "x.arrow"}, "x.arrow is not a table"),
        ({"test_file": "other.csv"}, r"other\.csv has no column 'y'"),
    ],
)
def test_separate_files_of_no_use(settings, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(MAIN).to_csv("main.csv", index=False)
    pd.DataFrame({"smiles": ["C"], "z": [1]}).to_csv("other.csv", index=False)
    with pytest.raises(InputError, match=reason):
        load_dataset(DataConfig("main.csv", **settings))
    with pytest.raises(InputError, match="is not a table"):
        load_dataset(DataConfig("pcqm4m", **settings))


# --- files and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "t.parquet", "T.CSV"])
def test_files(tmp_path, name):
    table = pd.DataFrame({"smiles": ["C", "N"], "note": ['a "quoted", one', "two\nlines"], "y": [0.1, np.nan]})
    if name.endswith("parquet"):
        table.to_parquet(tmp_path / name)
    else:
        table.to_csv(tmp_path / name, sep="\t" if ".tsv" in name else ",", index=False)
    found = load_dataset(DataConfig(dataset=str(tmp_path / name)))
    assert found.smiles == ["C", "N"] and found.target_names == ["y"] and set(found.rejected) == {1}
    np.testing.assert_array_equal(found.targets, [[0.1], [np.nan]])


@pytest.mark.parametrize("index", [[7, 9], ["a", "b"], "smiles"])
def test_a_parquet_file_with_row_names(tmp_path, index):
    """pandas stores its index as one more column of the file."""
    table = pd.DataFrame({"smiles": ["C", "N"], "y": ["1", "oops"]})
    table = table.set_index("smiles") if index == "smiles" else table.set_index(pd.Index(index))
    table.to_parquet(tmp_path / "t.parquet")
    found = load_dataset(DataConfig(dataset=str(tmp_path / "t.parquet"), targets="y"))
    assert found.smiles == ["C", "N"] and set(found.rejected) == {1}


@pytest.mark.parametrize("text", ["\ufeffsmiles,y\nC,1\nN,2\n", "smiles,y\r\nC,1\r\nN,2\r\n", "smiles,y\nC,1\n\nN,2"])
def test_csv_dialects(tmp_path, text):
    found = load_dataset(write(tmp_path / "t.csv", text, targets="y"))
    assert found.smiles == ["C", "N"] and found.targets[:, 0].tolist() == [1, 2]


def test_more_fields_than_the_header_are_no_row_names(tmp_path):
    """Some readers take the first field for a row name then, and every value moves one column on."""
    with pytest.raises(
        InputError, match=r"no row matches the header.*3 fields where the header has 2 .line 2 of t\.csv"
    ):
        load_dataset(write(tmp_path / "t.csv", "smiles,y\nC,1,\nN,2,\n", targets="y"))


def test_malformed_rows(tmp_path):
    """They are rejected and say why; their cells neither count as labels nor make a column one of numbers."""
    content = "smiles,y,note\nC,1,a\nN,2\nO,3,4,5\nF,x,b\nCl,6,c\n"
    found = load_dataset(write(tmp_path / "t.csv", content))
    assert found.target_names == ["y"] and found.smiles == ["C", "", "", "F", "Cl"]
    np.testing.assert_array_equal(found.targets[:, 0], [1, np.nan, np.nan, np.nan, 6])
    assert found.rejected == {
        1: "2 fields where the header has 3 (line 3 of t.csv)",
        2: "4 fields where the header has 3 (line 4 of t.csv)",
        3: "target 'y' is not a finite number: 'x'",
    }
    assert found.unreadable() == found.rejected


def test_a_row_without_a_label_is_none_of_the_unreadable(source):
    found = source({"smiles": ["C", "N", "O"], "y": ["", "1", "x"]})
    assert set(found.rejected) == {0, 2} and set(found.unreadable()) == {2}


def test_a_split_of_a_malformed_row_does_not_matter(tmp_path):
    found = load_dataset(write(tmp_path / "t.csv", 'smiles,y,split\nC,1,train\nN,2,"a",b\nO,3,valid\n'))
    assert named(found.splits) == {"train": [0], "valid": [2]} and set(found.rejected) == {1}


def test_semicolons_and_decimal_commas(tmp_path):
    """Some such labels are rejected row by row; where most are such, what is left would be the whole numbers."""
    found = load_dataset(write(tmp_path / "few.csv", "smiles;y\nC;1.5\nN;12,5\nO;3\n"))
    assert found.targets[::2, 0].tolist() == [1.5, 3]
    assert found.rejected == {1: "target 'y' is not a finite number: '12,5' (write 12.5)"}
    with pytest.raises(
        InputError, match=r"most\.csv: the target 'y' has decimal commas: '12,5' in row 2 \(write 12\.5\)"
    ):
        load_dataset(write(tmp_path / "most.csv", "smiles;y\nC;3\nN;12,5\nO;-,5e3\n"))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"smiles,y,split\nC,1,tran\n", "row 1: 'split' is 'tran'; it must be train, valid or test"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"smiles,y\n", "has no rows"),
        ("t.csv", b'smiles,y\n"C,1\n', "no row matches the header; the first: a quote opens in line 2 of t.csv"),
        ("t.csv", b"smiles,y,y\nC,1,8\n", "two columns called 'y'"),
        ("t.csv.gz", b"smiles,y\nC,1\n", "cannot read"),
        ("t.csv.gz", gzip.compress(b"smiles,y\nC,1\n" * 999, mtime=0)[:-20], "cannot read"),
        ("t.parquet", b"PAR1", "cannot read"),
        ("t.smi", b"C methane\n", "GraphSlice reads labelled molecules from .csv"),
        ("t.xlsx", b"PK", "GraphSlice reads labelled molecules from .csv"),
    ],
)
def test_files_of_no_use(tmp_path, name, content, reason):
    with pytest.raises(InputError, match=reason) as error:
        load_dataset(write(tmp_path / name, content))
    assert name in str(error.value) and "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no file at .*absent\.csv"):
        load_dataset(DataConfig(str(tmp_path / "absent.csv")))


@pytest.mark.parametrize(("name", "near"), [("pcqm4", "pcqm4m"), ("dmeo", "demo"), ("pcqm4m-v2", "pcqm4mv2")])
def test_unknown_dataset(name, near):
    with pytest.raises(InputError, match=f"unknown dataset '{name}' .did you mean '{near}'"):
        load_dataset(DataConfig(dataset=name))


@pytest.mark.parametrize("other", ["b.csv", "b.parquet"])
def test_a_folder_of_files_with_other_types(other, tmp_path):
    """Whole numbers in one file, fractions or texts in the next."""
    pd.DataFrame({"smiles": ["C", "N"], "y": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    table = pd.DataFrame({"smiles": ["O"], "y": [2.5]})
    table.to_parquet(tmp_path / other) if other.endswith("parquet") else table.to_csv(tmp_path / other, index=False)
    assert load_dataset(DataConfig(str(tmp_path), targets="y")).targets[:, 0].tolist() == [1, 2, 2.5]


def test_a_folder(tmp_path):
    for name, text in {"b.csv": "smiles,y\nN,2\nO,\n", "a.csv": "smiles,y\nC,1\n", "_c.csv": "no"}.items():
        (tmp_path / name).write_text(text)
    found = load_dataset(DataConfig(str(tmp_path)))
    assert found.smiles == ["C", "N", "O"] and set(found.rejected) == {2} and found.name == str(tmp_path)


def test_demo():
    found = load_dataset(DataConfig())
    assert found.name == "demo" and found.target_names == ["gap_ev"] and not found.rejected and not found.is_pcqm4m
    assert sorted(np.concatenate(list(found.splits.values())).tolist()) == list(range(len(found)))


def test_a_name_stays_a_name_where_a_folder_is_called_so(tmp_path, monkeypatch):
    """As in the folder of the runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "t.csv").touch()
    names = ("demo", "pcqm4m", "t.csv", "absent.csv")
    assert [absolute_dataset(name) for name in names] == ["demo", "pcqm4m", str(tmp_path / "t.csv"), "absent.csv"]
    config = RunConfig()
    assert finalize_config(config, load_dataset(config.data)).data.dataset == "demo"


def test_fingerprint_sees_molecules_and_labels(source):
    table = {"smiles": ["C", "N"], "y": [1.0, 2.0]}
    same = source(table).fingerprint()
    assert source(table).fingerprint() == same
    assert source({**table, "y": [1.0, 2.5]}).fingerprint() != same
    assert source({**table, "smiles": ["C", "O"]}).fingerprint() != same
    assert source({"smiles": ["N", "C"], "y": [2.0, 1.0]}).fingerprint() != same


# --- stores -------------------------------------------------------------------------------------

TABLE = {
    "smiles": ["C", "N", "oops", "", "O"],
    "y": ["1", "oops", "", "-2e3", "inf"],
    "z": ["5", "6", "7", "", "9"],
    "split": ["train", "VAL", " test ", "training", "dev"],
}


def stored(folder, table: dict, labels: str | None = "y,z", **settings):
    """The source that is a store of a table with some labels."""
    pd.DataFrame(table).to_csv(folder / "t.csv", index=False)
    made = DataConfig(str(folder / "t.csv"), targets=labels)
    featurize_dataset(made, GraphConfig(), folder / "t.arrow", workers=1, overwrite=True)
    return load_dataset(DataConfig(str(folder / "t.arrow"), **settings))


def test_a_store_is_a_source(source, tmp_path):
    found, table = stored(tmp_path, TABLE), source(TABLE, targets="y,z")
    assert found.name == str(tmp_path / "t.arrow") and len(found) == 5 and found.target_names == ["y", "z"]
    assert found.smiles == [] and found.graphs is None and found.store.sizes.tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_array_equal(found.targets, table.targets)
    assert set(found.rejected) == {1, 2, 3, 4}  # two labels that are no numbers, two SMILES that are no molecules
    assert named(found.splits) == {"train": [0], "valid": [], "test": []}


@pytest.mark.parametrize(("targets", "names"), [("z", ["z"]), ("z,y", ["z", "y"]), (None, ["y", "z"])])
def test_some_targets_of_a_store(targets, names, source, tmp_path):
    table = {"smiles": ["C", "N", "O"], "y": [1, None, None], "z": [None, 5, None]}
    found = stored(tmp_path, table, targets=targets)
    assert found.target_names == names
    expected = source(table, targets=",".join(names))
    np.testing.assert_array_equal(found.targets, expected.targets)
    assert found.rejected == expected.rejected and found.rejected[2] == "no target value"


def test_a_wrong_label_of_another_target_does_not_matter(source, tmp_path):
    """As for a table."""
    table = {"smiles": ["C", "N"], "y": [1, 2], "z": ["oops", 5]}
    stored(tmp_path, table)
    assert source(table, targets="y").rejected == {}
    assert load_dataset(DataConfig(str(tmp_path / "t.arrow"), targets="y")).rejected == {}


@pytest.mark.parametrize("split", [None, "split", "random"])
def test_the_split_of_a_store(split, tmp_path):
    table = {
        "smiles": ["C", "N", "O", "F", "oops"],
        "y": range(5),
        "split": ["test", "train", "valid", "train", "test"],
    }
    found = stored(tmp_path, table, "y", split=split)
    assert named(found.splits) == (None if split == "random" else {"train": [1, 3], "valid": [2], "test": [0]})


def test_a_store_without_a_split(tmp_path):
    assert stored(tmp_path, {"smiles": ["C"], "y": [1]}, "y").splits is None


def test_a_store_without_the_split_that_was_asked_for(tmp_path):
    with pytest.raises(InputError, match="split"):
        stored(tmp_path, {"smiles": ["C"], "y": [1]}, "y", split="split")


@pytest.mark.parametrize(
    ("labels", "settings", "reason"),
    [
        (None, {}, r"t\.arrow has no labels: run graphslice featurize with --targets"),
        ("y,z", {"targets": "yy"}, r"no target 'yy' .did you mean 'y'.*it has 'y', 'z'"),
        ("y,z", {"targets": "y,gap"}, "no target 'gap'"),
        (
            "y,z",
            {"split": "fold"},
            "cannot be split by 'fold'.*featurize with --split COLUMN.*; or give random, scaffold",
        ),
    ],
)
def test_stores_of_no_use(labels, settings, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        stored(tmp_path, TABLE, labels, **settings)


def test_a_target_of_a_store_named_twice(tmp_path):
    with pytest.raises(InputError, match="twice"):
        stored(tmp_path, TABLE, "y,z", targets="y,y")


def test_fingerprint_of_a_store(tmp_path):
    first = stored(tmp_path, TABLE).fingerprint()
    assert stored(tmp_path, TABLE).fingerprint() == first
    assert load_dataset(DataConfig(str(tmp_path / "t.arrow"), targets="y")).fingerprint() != first
    assert stored(tmp_path, {**TABLE, "smiles": ["CC", *TABLE["smiles"][1:]]}).fingerprint() != first


# --- PyG ----------------------------------------------------------------------------------------


def pyg(smiles: str, *y: float):
    data = gs.smiles_to_graph(smiles).to_pyg()
    data.y = torch.tensor([y])
    return data


def test_pyg():
    broken = pyg("CC", 9.0)
    broken.x = broken.x[:, :3]
    unlabelled = gs.smiles_to_graph("CCC").to_pyg()
    unlabelled.y = None
    found = dataset_from_pyg([pyg("CCO", 1.0), broken, pyg("C", np.nan), pyg("N", 1e30), unlabelled, pyg("O", 2.0)])
    assert found.name == "pyg" and found.target_names == ["y"] and len(found) == 6
    assert set(found.rejected) == {1, 2, 3, 4} and "atom features" in found.rejected[1]
    assert [g.num_atoms for g in found.graphs] == [3, 0, 1, 1, 3, 1]
    np.testing.assert_array_equal(found.targets[[0, 5]], [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("names", "expected"), [(None, ["y0", "y1"]), (["gap", "dipole"], ["gap", "dipole"]), (("a", "b"), ["a", "b"])]
)
def test_pyg_target_names(names, expected):
    found = dataset_from_pyg((pyg(s, 1.0, 2.0) for s in ("C", "N")), names)
    assert found.target_names == expected and found.targets.shape == (2, 2) and not found.rejected


@pytest.mark.parametrize(
    ("data", "names", "reason"),
    [
        ([], None, "is empty"),
        ([pyg("C", 1.0), pyg("N", 1.0, 2.0)], None, r"different numbers of targets: \[1, 2\]"),
        ([pyg("C", np.nan)], None, "no graph .* can be used; the first: no target value"),
        ([pyg("C", 1.0)], ["a", "b"], "2 target names for 1 targets"),
    ],
)
def test_pyg_of_no_use(data, names, reason):
    with pytest.raises(InputError, match=reason):
        dataset_from_pyg(data, names)


def test_pyg_fingerprint_sees_the_graphs():
    assert dataset_from_pyg([pyg("CCO", 1.0)]).fingerprint() != dataset_from_pyg([pyg("CCN", 1.0)]).fingerprint()
