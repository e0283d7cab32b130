from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
import torch

import graphslice as gs
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.featurize import featurize_dataset
from graphslice.data.rows import Rows
from graphslice.data.sources import (
    find_smiles_column,
    label_columns,
    labelled_rows,
    load_source,
    pyg_source,
    read_table,
    table_source,
)
from graphslice.errors import InputError


def source(table: dict | pd.DataFrame, **settings):
    return table_source(pd.DataFrame(table), DataConfig(dataset="t.csv", **settings), "t.csv")


def write(path, text: str | bytes):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return DataConfig(dataset=str(path))


# --- which columns ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "given", "found"),
    [
        (["id", "smiles"], None, "smiles"),
        (["SMILES ", "y"], None, "SMILES "),
        (["smi", "canonical_smiles"], None, "canonical_smiles"),
        (["mol", "structure"], None, "mol"),
        (["smiles", "other"], "other", "other"),
        (["Smiles", "smiles"], None, "Smiles"),
    ],
)
def test_smiles_column(columns, given, found):
    assert find_smiles_column(columns, given, "t.csv") == found


@pytest.mark.parametrize(
    ("columns", "given", "reason"),
    [
        (["smiles", "y"], "smile", r"no column 'smile' \(did you mean 'smiles'\?\); it has 'smiles', 'y'"),
        (["a", "b"], None, "which column holds the SMILES.*--smiles-column.*'a', 'b'"),
        ([f"c{i}" for i in range(20)], None, "and 8 more"),
    ],
)
def test_no_smiles_column(columns, given, reason):
    with pytest.raises(InputError, match=reason):
        find_smiles_column(columns, given, "t.csv")


def test_the_one_numeric_column_is_the_target():
    found = source({"name": ["a", "b"], "smiles": ["C", "N"], "y": [1, 2], "split": ["train", "valid"]})
    assert found.target_names == ["y"] and found.smiles == ["C", "N"] and found.name == "t.csv" and len(found) == 2
    np.testing.assert_array_equal(found.targets, [[1.0], [2.0]])
    assert found.targets.dtype == np.float64


@pytest.mark.parametrize(
    ("targets", "names"), [("y", ["y"]), ("z,y", ["z", "y"]), (" z , y ,", ["z", "y"]), ("a,b", ["a,b"])]
)
def test_given_targets(targets, names):
    table = {"smiles": ["C"], "y": [1.0], "z": [2.0], "a,b": [3.0]}
    found = source(table, targets=targets)
    assert found.target_names == names
    np.testing.assert_array_equal(found.targets, [[table[name][0] for name in names]])


@pytest.mark.parametrize(
    ("table", "targets", "reason"),
    [
        ({"smiles": ["C"], "logp": [1.0]}, "logP", r"no column 'logP' \(did you mean 'logp'\?\)"),
        ({"smiles": ["C"], "y": [1.0]}, "y,y", "names a column twice"),
        ({"smiles": ["C"], "y": [1.0], "z": [2.0]}, None, "which columns shall be predicted.*--targets.*'y', 'z'"),
        ({"smiles": ["C"]}, None, "which columns shall be predicted"),
        ({"smiles": ["C", "N"], "y": ["high", "low"]}, None, "'y' is not numeric.*'high'"),
        ({"smiles": ["C", "N"], "y": [None, "low"]}, "y", "'y' is not numeric.*'low'"),
        ({"smiles": ["C", "N"], "y": [np.nan, np.nan]}, "y", "'y' is empty in every row"),
        ({"smiles": ["C", "N"], "y": ["", " "]}, "y", "'y' is empty in every row"),
        ({"smiles": ["C", "N"], "y": [np.inf, -np.inf]}, "y", "'y' is not numeric"),
    ],
)
def test_targets_of_no_use(table, targets, reason):
    with pytest.raises(InputError, match=reason):
        source(table, targets=targets)


# --- labels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [None, [10, 20, 30, 40, 50], list("abcde")])
def test_rows_without_a_usable_label(index):
    """A row is rejected with the reason, whatever the table's own row names are."""
    table = pd.DataFrame({"smiles": list("CNOFC"), "y": ["1.5", "n/d", "", "inf", "-2e3"]}, index=index)
    found = source(table)
    assert set(found.rejected) == {1, 2, 3}
    assert "not a finite number: 'n/d'" in found.rejected[1]
    assert found.rejected[2] == "no target value"
    assert "not a finite number: 'inf'" in found.rejected[3]
    np.testing.assert_array_equal(found.targets, [[1.5], [np.nan], [np.nan], [np.nan], [-2000.0]])


def test_several_targets_with_gaps():
    """A gap is no reason to lose the row; a wrong text or no label at all is."""
    table = {"smiles": list("CNOF"), "y": [1, None, None, 4], "z": ["5", "6", "", "oops"]}
    found = source(table, targets="y,z")
    np.testing.assert_array_equal(found.targets, [[1, 5], [np.nan, 6], [np.nan, np.nan], [4, np.nan]])
    assert set(found.rejected) == {2, 3} and "'z'" in found.rejected[3]


def test_empty_smiles_become_empty_texts():
    assert source({"smiles": ["C", None, np.nan], "y": [1, 2, 3]}).smiles == ["C", "", ""]


def test_a_boolean_target_is_a_number():
    np.testing.assert_array_equal(source({"smiles": ["C", "N"], "y": [True, False]}).targets, [[1.0], [0.0]])


# --- splits -------------------------------------------------------------------------------------


def test_split_column_words():
    words = ["train", "Training", "valid", " VAL ", "validation", "dev", "test", "train"]
    found = source({"smiles": ["C"] * 8, "y": [*range(7), None], "split": words})
    parts = {part: rows.tolist() for part, rows in found.split.items()}
    assert parts == {"train": [0, 1], "valid": [2, 3, 4, 5], "test": [6]}  # row 7 has no label
    assert source({"smiles": ["C"] * 8, "y": range(8), "fold": words}, split="fold").split["train"].tolist() == [
        0,
        1,
        7,
    ]


@pytest.mark.parametrize("word", ["holdout", None, 3])
def test_a_word_that_names_no_part(word):
    with pytest.raises(InputError, match=r"row 2: 'split' is .*; it must be train, valid or test"):
        source({"smiles": ["C", "N"], "y": [1, 2], "split": ["train", word]}, targets="y")


@pytest.mark.parametrize("split", ["random", "scaffold"])
def test_a_split_method_comes_before_the_column(split):
    assert source({"smiles": ["C"], "y": [1], "split": ["train"]}, split=split).split is None


@pytest.mark.parametrize(("split", "near"), [("randm", "random"), ("flod", "fold")])
def test_unknown_split(split, near):
    with pytest.raises(InputError, match=f"unknown split '{split}'.*did you mean '{near}'"):
        source({"smiles": ["C"], "y": [1], "fold": ["train"]}, split=split)


# --- files and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "t.parquet", "T.CSV"])
def test_files(tmp_path, name):
    table = pd.DataFrame({"smiles": ["C", "N"], "note": ['a "quoted", one', "two\nlines"], "y": [0.1, np.nan]})
    if name.endswith("parquet"):
        table.to_parquet(tmp_path / name)
    else:
        table.to_csv(tmp_path / name, sep="\t" if ".tsv" in name else ",", index=False)
    found = load_source(DataConfig(dataset=str(tmp_path / name)))
    assert found.smiles == ["C", "N"] and found.target_names == ["y"] and set(found.rejected) == {1}
    np.testing.assert_array_equal(found.targets, [[0.1], [np.nan]])


@pytest.mark.parametrize("index", [[7, 9], ["a", "b"], "smiles"])
def test_a_parquet_file_with_row_names(tmp_path, index):
    """pandas stores its index as one more column of the file."""
    table = pd.DataFrame({"smiles": ["C", "N"], "y": ["1", "oops"]})
    table = table.set_index("smiles") if index == "smiles" else table.set_index(pd.Index(index))
    table.to_parquet(tmp_path / "t.parquet")
    found = load_source(DataConfig(dataset=str(tmp_path / "t.parquet"), targets="y"))
    assert found.smiles == ["C", "N"] and set(found.rejected) == {1}


@pytest.mark.parametrize("text", ["\ufeffsmiles,y\nC,1\nN,2\n", "smiles,y\r\nC,1\r\nN,2\r\n", "smiles,y\nC,1\n\nN,2"])
def test_csv_dialects(tmp_path, text):
    config = write(tmp_path / "t.csv", text)
    config.targets = "y"
    found = load_source(config)
    assert found.smiles == ["C", "N"] and found.targets[:, 0].tolist() == [1, 2]


def test_more_fields_than_the_header_are_no_row_names(tmp_path):
    """pandas takes the first field for a row name then, and every value moves one column on."""
    config = write(tmp_path / "t.csv", "smiles,y\nC,1,\nN,2,\n")
    config.targets = "y"
    try:
        found = load_source(config)
    except InputError as error:
        assert "fields where" in str(error) or "line 2" in str(error)
    else:
        assert found.smiles == ["C", "N"] and found.targets[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"smiles,y\n", "has no rows"),
        ("t.csv", b"smiles,y\nC,1\nN,2,3,4\n", "line 3: 4 fields where the header has 2"),
        ("t.csv", b'smiles,y\n"C,1\n', "cannot read"),
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
        load_source(write(tmp_path / name, content))
    assert name in str(error.value) and "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no file at .*absent\.csv"):
        read_table(tmp_path / "absent.csv")


@pytest.mark.parametrize(("name", "near"), [("pcqm4", "pcqm4m"), ("dmeo", "demo"), ("pcqm4m-v2", "pcqm4mv2")])
def test_unknown_dataset(name, near):
    with pytest.raises(InputError, match=f"unknown dataset '{name}' .did you mean '{near}'"):
        load_source(DataConfig(dataset=name))


@pytest.mark.parametrize("other", ["b.csv", "b.parquet"])
def test_a_folder_of_files_with_other_types(other, tmp_path):
    """Whole numbers in one file, fractions or texts in the next."""
    pd.DataFrame({"smiles": ["C", "N"], "y": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    table = pd.DataFrame({"smiles": ["O"], "y": [2.5]})
    table.to_parquet(tmp_path / other) if other.endswith("parquet") else table.to_csv(tmp_path / other, index=False)
    assert load_source(DataConfig(str(tmp_path), targets="y")).targets[:, 0].tolist() == [1, 2, 2.5]


def test_a_folder(tmp_path):
    for name, text in {"b.csv": "smiles,y\nN,2\nO,\n", "a.csv": "smiles,y\nC,1\n", "_c.csv": "no"}.items():
        (tmp_path / name).write_text(text)
    found = load_source(DataConfig(str(tmp_path)))
    assert found.smiles == ["C", "N", "O"] and set(found.rejected) == {2} and found.name == str(tmp_path)


def test_demo():
    found = load_source(DataConfig())
    assert found.name == "demo" and found.target_names == ["gap_ev"] and not found.rejected and not found.is_pcqm4m
    assert sorted(np.concatenate(list(found.split.values())).tolist()) == list(range(len(found)))


def test_fingerprint_sees_molecules_and_labels():
    table = {"smiles": ["C", "N"], "y": [1.0, 2.0]}
    same = source(table).fingerprint()
    assert source(table).fingerprint() == same
    assert source({**table, "y": [1.0, 2.5]}).fingerprint() != same
    assert source({**table, "smiles": ["C", "O"]}).fingerprint() != same
    assert source({"smiles": ["N", "C"], "y": [2.0, 1.0]}).fingerprint() != same


# --- tables as streams --------------------------------------------------------------------------

WORDS = ["train", "VAL", " test ", "training", "dev"]
TABLE = {
    "smiles": ["C", "N", "oops", "", "O"],
    "y": ["1", "oops", "", "-2e3", "inf"],
    "z": ["5", "6", "7", "", "9"],
    "split": WORDS,
}


def streamed(folder, table: dict, suffix: str = ".csv", **settings) -> tuple[tuple, Rows]:
    """The columns that were found in a table, and all of its rows at once."""
    path = folder / f"t{suffix}"
    frame = pd.DataFrame(table)
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    columns = label_columns(path, DataConfig(str(path), **settings))
    (rows,) = labelled_rows(path, columns)
    assert rows.targets.dtype == np.float64 and rows.split.dtype == np.int8
    assert len(rows) == len(rows.split) == len(frame)
    return columns, rows


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_of_a_stream(suffix, tmp_path):
    columns, rows = streamed(tmp_path, TABLE, suffix, targets="z, y")
    assert columns == ("smiles", ["z", "y"], "split") and rows.smiles == TABLE["smiles"]
    np.testing.assert_array_equal(rows.targets[:, 0], [5, 6, 7, np.nan, 9])
    np.testing.assert_array_equal(rows.targets[:, 1], [1, np.nan, np.nan, -2000, np.nan])
    assert rows.split.tolist() == [0, 1, 2, 0, 1]
    assert set(rows.rejected) == {1, 4} and "'y' is not a finite number: 'oops'" in rows.rejected[1]


def test_labels_of_a_stream_are_those_of_a_table(tmp_path):
    _, rows = streamed(tmp_path, TABLE, targets="y,z")
    found = source(TABLE, targets="y,z")
    np.testing.assert_array_equal(rows.targets, found.targets)
    assert rows.rejected == found.rejected and rows.smiles == found.smiles


def test_a_stream_without_labels_or_split(tmp_path):
    columns, rows = streamed(tmp_path, {"mol": ["C", None], "y": [1, 2]}, ".parquet")
    assert columns == ("mol", [], None) and rows.smiles == ["C", ""] and rows.rejected == {}
    assert rows.split.tolist() == [-1, -1]


def test_a_given_split_column(tmp_path):
    columns, rows = streamed(tmp_path, {**TABLE, "fold": WORDS[::-1]}, split="fold", smiles_column="y")
    assert columns == ("y", [], "fold") and rows.smiles == TABLE["y"] and rows.split.tolist() == [1, 0, 2, 1, 0]


def test_smiles_files_are_streams_too(tmp_path):
    (tmp_path / "t.smi").write_text("CCO ethanol\nC 7\n")
    (rows,) = labelled_rows(tmp_path / "t.smi", label_columns(tmp_path / "t.smi", DataConfig(targets="name")))
    assert rows.smiles == ["CCO", "C"] and set(rows.rejected) == {0} and rows.targets[1] == 7


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"targets": "yy"}, r"no column 'yy' .did you mean 'y'"),
        ({"targets": "y,gap"}, "no column 'gap'.*it has 'smiles', 'y', 'z', 'split'"),
        ({"split": "splat"}, r"no column 'splat' .did you mean 'split'"),
        ({"split": "random"}, "give --split random when you train on it"),
        ({"split": "scaffold"}, "give --split scaffold when you train on it"),
        ({"smiles_column": "smile"}, r"no column 'smile' .did you mean 'smiles'"),
        ({"split": "y"}, "row 1: 'y' is '1'; it must be train, valid or test"),
    ],
)
def test_streams_of_no_use(settings, reason, tmp_path):
    with pytest.raises(InputError, match=reason):
        streamed(tmp_path, TABLE, **settings)


def test_a_wrong_word_far_down_is_told_by_its_row(tmp_path):
    table = {"smiles": ["C"] * 9_001, "split": ["train"] * 9_000 + ["nowhere"]}
    with pytest.raises(InputError, match="row 9001: 'split' is 'nowhere'"):
        streamed(tmp_path, table)


def test_the_word_of_a_row_without_label_does_not_matter(tmp_path):
    """As for a table."""
    table = {"smiles": ["C", "N"], "y": ["1", ""], "split": ["train", ""]}
    assert source(table, targets="y").split["train"].tolist() == [0]
    assert streamed(tmp_path, table, targets="y")[1].split.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("text", "targets"),
    [("smiles,y\nC,1\n", "y,y"), ("smiles,y,y\nC,1,2\n", "y"), ("smiles,smiles,y\nC,N,2\n", "y")],
    ids=["targets", "columns", "SMILES"],
)
def test_a_stream_with_a_name_twice(text, targets, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"twice|two columns"):
        list(labelled_rows(tmp_path / "t.csv", label_columns(tmp_path / "t.csv", DataConfig(targets=targets))))


def test_a_target_of_a_stream_with_a_comma_in_its_name(tmp_path):
    """As for a table."""
    columns, rows = streamed(tmp_path, {"smiles": ["C"], "a,b": ["3"]}, targets="a,b")
    assert columns[1] == ["a,b"] and rows.targets.tolist() == [[3]]


# --- stores -------------------------------------------------------------------------------------


def stored(folder, table: dict, labels: str | None = "y,z", **settings):
    """The source that is a store of a table with some labels."""
    pd.DataFrame(table).to_csv(folder / "t.csv", index=False)
    made = DataConfig(str(folder / "t.csv"), targets=labels)
    featurize_dataset(made, GraphConfig(), folder / "t.arrow", workers=1, overwrite=True)
    return load_source(DataConfig(str(folder / "t.arrow"), **settings))


def test_a_store_is_a_source(tmp_path):
    found, table = stored(tmp_path, TABLE), source(TABLE, targets="y,z")
    assert found.name == str(tmp_path / "t.arrow") and len(found) == 5 and found.target_names == ["y", "z"]
    assert found.smiles == [] and found.graphs is None and found.store.sizes.tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_array_equal(found.targets, table.targets)
    assert set(found.rejected) == {1, 2, 3, 4}  # two labels that are no numbers, two SMILES that are no molecules
    assert {part: rows.tolist() for part, rows in found.split.items()} == {"train": [0], "valid": [], "test": []}


@pytest.mark.parametrize(("targets", "names"), [("z", ["z"]), ("z,y", ["z", "y"]), (None, ["y", "z"])])
def test_some_targets_of_a_store(targets, names, tmp_path):
    table = {"smiles": ["C", "N", "O"], "y": [1, None, None], "z": [None, 5, None]}
    found = stored(tmp_path, table, targets=targets)
    assert found.target_names == names
    expected = source(table, targets=",".join(names))
    np.testing.assert_array_equal(found.targets, expected.targets)
    assert found.rejected == expected.rejected and found.rejected[2] == "no target value"


def test_a_wrong_label_of_another_target_does_not_matter(tmp_path):
    """As for a table."""
    table = {"smiles": ["C", "N"], "y": [1, 2], "z": ["oops", 5]}
    stored(tmp_path, table)
    assert source(table, targets="y").rejected == {}
    assert load_source(DataConfig(str(tmp_path / "t.arrow"), targets="y")).rejected == {}


@pytest.mark.parametrize("split", [None, "split", "random"])
def test_the_split_of_a_store(split, tmp_path):
    table = {
        "smiles": ["C", "N", "O", "F", "oops"],
        "y": range(5),
        "split": ["test", "train", "valid", "train", "test"],
    }
    found = stored(tmp_path, table, "y", split=split) if split == "split" else stored(tmp_path, table, "y")
    found = load_source(DataConfig(str(tmp_path / "t.arrow"), split=split))
    parts = found.split and {part: rows.tolist() for part, rows in found.split.items()}
    assert parts == (None if split == "random" else {"train": [1, 3], "valid": [2], "test": [0]})


def test_a_store_without_a_split(tmp_path):
    assert stored(tmp_path, {"smiles": ["C"], "y": [1]}, "y").split is None


def test_a_store_without_the_split_that_was_asked_for(tmp_path):
    with pytest.raises(InputError, match="split"):
        stored(tmp_path, {"smiles": ["C"], "y": [1]}, "y", split="split")


@pytest.mark.parametrize(
    ("labels", "settings", "reason"),
    [
        (None, {}, r"t\.arrow has no labels: featurize with --targets"),
        ("y,z", {"targets": "yy"}, r"no target 'yy' .did you mean 'y'.*it has 'y', 'z'"),
        ("y,z", {"targets": "y,gap"}, "no target 'gap'"),
        ("y,z", {"split": "scaffold"}, "cannot be split by 'scaffold'.*no SMILES for a scaffold split; or give random"),
        ("y,z", {"split": "fold"}, "cannot be split by 'fold'.*featurize with --split COLUMN"),
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
    assert load_source(DataConfig(str(tmp_path / "t.arrow"), targets="y")).fingerprint() != first
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
    found = pyg_source([pyg("CCO", 1.0), broken, pyg("C", np.nan), pyg("N", np.inf), unlabelled, pyg("O", 2.0)])
    assert found.name == "pyg" and found.target_names == ["y"] and len(found) == 6
    assert set(found.rejected) == {1, 2, 3, 4} and "atom features" in found.rejected[1]
    assert [g.num_atoms for g in found.graphs] == [3, 0, 1, 1, 3, 1]
    np.testing.assert_array_equal(found.targets[[0, 5]], [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("names", "expected"), [(None, ["y0", "y1"]), (["gap", "dipole"], ["gap", "dipole"]), (("a", "b"), ["a", "b"])]
)
def test_pyg_target_names(names, expected):
    found = pyg_source((pyg(s, 1.0, np.nan) for s in ("C", "N")), names)
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
        pyg_source(data, names)


def test_pyg_fingerprint_sees_the_graphs():
    assert pyg_source([pyg("CCO", 1.0)]).fingerprint() != pyg_source([pyg("CCN", 1.0)]).fingerprint()
