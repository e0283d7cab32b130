"""Which columns of a table are labels, and what their cells say."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.config import DataConfig
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.labels import (
    LabelColumns,
    find_columns,
    find_smiles_column,
    infer_target,
    join_names,
    labelled_rows,
    parse_chunk,
    parse_chunks,
    parse_splits,
    target_names,
)
from graphslice.data.parse_cells import parse_numbers
from graphslice.errors import InputError

METHODS = ("random", "scaffold")


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


@pytest.mark.parametrize(
    ("text", "names"),
    [("y", ["y"]), ("z,y", ["z", "y"]), (" z , y ,", ["z", "y"]), ("a,b", ["a,b"]), (None, []), ("", [])],
)
def test_target_names(text, names):
    assert target_names(text, ["smiles", "y", "z", "a,b"]) == names


def test_a_target_named_twice():
    with pytest.raises(InputError, match="--targets names a column twice: y, y"):
        target_names("y,y", ["y"])


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, LabelColumns("smiles", [], "split")),
        ({"targets": "z, y"}, LabelColumns("smiles", ["z", "y"], "split")),
        ({"split": "fold", "smiles_column": "y"}, LabelColumns("y", [], "fold")),
        ({"split": "random"}, LabelColumns("smiles", [], None)),
        ({"split": "scaffold"}, LabelColumns("smiles", [], None)),
    ],
)
def test_columns(settings, found):
    columns = ["smiles", "y", "z", "split", "fold"]
    assert find_columns(columns, DataConfig(**settings), "t.csv", METHODS) == found


def test_a_split_column_in_any_case():
    for columns, found in (
        (["smiles", "y", "Split"], "Split"),
        (["smiles", "y", " SPLIT "], " SPLIT "),
        (["smiles", "y", "Split", "split"], "split"),
        (["smiles", "y", "Split", "SPLIT"], None),
        (["smiles", "y", "splits"], None),
    ):
        assert find_columns(columns, DataConfig(targets="y"), "t.csv").split == found


def test_no_split_column():
    assert find_columns(["mol", "y"], DataConfig(), "t.csv") == LabelColumns("mol", [], None)


@pytest.mark.parametrize(
    ("settings", "methods", "reason"),
    [
        ({"targets": "yy"}, (), r"t\.csv has no column 'yy' .did you mean 'y'"),
        ({"targets": "y,gap"}, (), "no column 'gap'.*it has 'smiles', 'y', 'split', 'fold'"),
        ({"smiles_column": "smile"}, (), r"no column 'smile' .did you mean 'smiles'"),
        ({"split": "splat"}, (), r"no column 'splat' .did you mean 'split'.*it has 'smiles'"),
        ({"split": "randm"}, METHODS, r"unknown split 'randm' .did you mean 'random'.*give random, scaffold, or a col"),
        ({"split": "flod"}, METHODS, r"unknown split 'flod' .did you mean 'fold'.*a column of t\.csv, which has 'smi"),
    ],
)
def test_no_such_column(settings, methods, reason):
    with pytest.raises(InputError, match=reason):
        find_columns(["smiles", "y", "split", "fold"], DataConfig(**settings), "t.csv", methods)


@pytest.mark.parametrize(
    "columns", [["smiles", "y", "y"], ["smiles", "smiles", "y"], ["smiles", "y", "split", "split"]]
)
def test_two_columns_of_one_name(columns):
    with pytest.raises(InputError, match=r"t\.csv has two columns called"):
        find_columns(columns, DataConfig(targets="y"), "t.csv")


def test_two_columns_of_a_name_that_is_not_used():
    found = find_columns(["smiles", "note", "y", "note"], DataConfig(targets="y"), "t.csv")
    assert found == LabelColumns("smiles", ["y"], None)


# --- the one column of numbers --------------------------------------------------------------------


def target_of(*chunks: dict, split: str | None = None) -> str:
    return infer_target([pa.table(chunk) for chunk in chunks], LabelColumns("smiles", [], split), "t.csv")[0]


def test_the_one_numeric_column_is_the_target():
    table = {"name": ["a", "b"], "smiles": ["C", "N"], "y": ["1", "2"], "fold": ["1", "2"]}
    assert target_of(table, split="fold") == "y"


def test_a_number_far_down_makes_a_column_numeric():
    assert target_of({"smiles": ["C"], "y": [""], "z": ["a"]}, {"smiles": ["N"], "y": ["1"], "z": ["b"]}) == "y"


def test_columns_without_names_are_no_targets():
    """Commas at the ends of lines, as spreadsheets write them."""
    table = pa.table([["C", "N"], ["1", "2"], ["", ""], ["", ""]], names=["smiles", "y", "", ""])
    assert infer_target([table], LabelColumns("smiles", [], None), "t.csv")[0] == "y"


def test_dates_that_python_has_not_are_no_targets():
    beyond = pa.array([253402300800000000, 0], pa.int64()).cast(pa.timestamp("us"))
    assert target_of({"smiles": ["C", "N"], "measured": beyond, "y": [1.5, 2.5]}) == "y"


def test_a_numbering_is_no_target_beside_classes():
    smiles, activity = ["C", "N", "O", "F"], ["active", "inactive", "active", ""]
    assert target_of({"smiles": smiles, "name": ["a", "b", "c", "2"], "activity": activity, "y": [1, 2, 3.5, 4]}) == "y"
    assert target_of({"smiles": smiles, "activity": activity, "y": [7, 7, 9, 11]}) == "y"
    assert target_of({"smiles": smiles, "name": ["a", "b", "c", "d"], "y": [7, 8, 9, 11]}) == "y"
    for numbers in ([11, 12, 13, 14], [1, 2, None, 3]):
        with pytest.raises(InputError, match=r"which columns are the targets.*the columns are 'cid', 'activity'"):
            target_of({"smiles": smiles, "cid": numbers, "activity": activity})
    long = {"smiles": ["C"] * 300, "cid": list(range(300)), "activity": ["yes", "no", "no"] * 100}
    with pytest.raises(InputError, match="which columns are the targets"):
        target_of(long)


def test_classes_that_were_not_meant_are_told(tmp_path):
    rows = "".join(f"C{'C' * n},{n / 7},{'high' if n % 2 else 'low'},name {n}\n" for n in range(12))
    (tmp_path / "t.csv").write_text("smiles,y,activity,id\n" + rows)
    path = str(tmp_path / "t.csv")
    source = load_dataset(DataConfig(path))
    assert source.target_names == ["y"]
    assert source.notes == (
        "only 'y' is predicted; to predict columns of classes too, name all targets with --targets: 'activity'",
    )
    assert load_dataset(DataConfig(path, targets="y")).notes == ()


def test_the_only_other_column_is_the_target_even_without_a_number():
    assert target_of({"smiles": ["C"], "y": ["high"]}) == "y"


@pytest.mark.parametrize(
    "table", [{"smiles": ["C"], "y": [1.0], "z": [2.0]}, {"smiles": ["C"], "y": ["a"], "z": ["b"]}]
)
def test_more_than_one_column(table):
    names = ", ".join(repr(name) for name in table if name != "smiles")
    said = f"which columns are the targets.*--targets, or as targets in Python; the columns are {names}"
    with pytest.raises(InputError, match=said):
        target_of(table)


def test_no_column_but_the_smiles():
    with pytest.raises(InputError, match="has no column that could be predicted, only 'smiles'"):
        target_of({"smiles": ["C"]})


# --- numbers --------------------------------------------------------------------------------------


def parsed(cells: list, kind: pa.DataType | None = None) -> tuple[list, list]:
    """The numbers of a column, None in place of nan, and the rows of its empty cells."""
    numbers, empty = parse_numbers(pa.chunked_array([pa.array(cells, kind)]))
    assert numbers.dtype == np.float64 and empty.dtype == bool
    return [None if np.isnan(number) else number for number in numbers], np.flatnonzero(empty).tolist()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" 1.5\t", 1.5), ("-2e3", -2000), ("+1E-3", 0.001), (".5", 0.5), ("5.", 5), ("inf", np.inf)],
)
def test_texts_that_are_numbers(text, number):
    assert parsed([text.encode()]) == ([number], []) and parsed([text]) == ([number], [])


@pytest.mark.parametrize("text", ["n/d", "1,5", "1_000", "0x10", "True", "1 2", "\u0661", "."])
def test_texts_that_are_no_numbers(text):
    assert parsed([text]) == ([None], [])


@pytest.mark.parametrize("text", ["", " ", "NA", "n/a", "NaN", "null", "None", "<NA>"])
def test_texts_that_say_that_there_is_no_value(text):
    assert parsed([text]) == ([None], [0])


def test_every_number_reads_back_to_the_bit():
    values = np.random.default_rng(0).normal(size=100)
    assert parsed([repr(float(value)) for value in values])[0] == values.tolist()


@pytest.mark.parametrize(
    ("cells", "kind", "numbers", "empty"),
    [
        ([1, None, 3], pa.int64(), [1, None, 3], [1]),
        ([1.5, float("nan"), float("inf")], pa.float64(), [1.5, None, np.inf], [1]),
        ([0.5, None], pa.float32(), [0.5, None], [1]),
        ([True, None, False], pa.bool_(), [None, None, None], [1]),  # words, of classes
        ([Decimal("0.1"), None], pa.decimal128(5, 3), [0.1, None], [1]),
        ([datetime.date(2020, 1, 1), None], pa.date32(), [None, None], [1]),
        ([None, None], pa.null(), [None, None], [0, 1]),
    ],
    ids=str,
)
def test_columns_of_parquet(cells, kind, numbers, empty):
    assert parsed(cells, kind) == (numbers, empty)


def test_the_minus_sign_of_typesetting_is_one():
    numbers, empty = parse_numbers(pa.chunked_array([["\u22121.5", "1e\u22122", "\u2212"]]))
    assert numbers[:2].tolist() == [-1.5, 0.01] and np.isnan(numbers[2]) and not empty.any()


def test_a_column_of_categories():
    numbers, _ = parse_numbers(pa.chunked_array([pa.array(["1", "2", "1"]).dictionary_encode()]))
    assert numbers.tolist() == [1, 2, 1]


# --- splits ---------------------------------------------------------------------------------------


def test_split_words():
    words = ["train", "Training", "valid", " VAL ", "validation", "dev", "test"]
    found = parse_splits(words, "split")
    assert found.dtype == np.int8 and found.tolist() == [0, 0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("word", ["holdout", "", "3", "test-dev"])
def test_a_word_that_names_no_split(word):
    with pytest.raises(InputError, match=f"row 2: 'fold' is '{word}'; it must be train, valid or test"):
        parse_splits(["train", word], "fold")


def test_the_row_of_a_wrong_word_is_that_of_the_table():
    with pytest.raises(InputError, match="row 9002: "):
        parse_splits(["train", "nowhere"], "split", first_row=9_000)


def test_a_row_that_needs_no_split_may_name_one():
    needed = np.array([True, False, False])
    assert parse_splits(["train", "nowhere", "test"], "split", needed).tolist() == [0, -1, 2]


# --- rows -----------------------------------------------------------------------------------------

TABLE = {
    "smiles": ["C", "N", "oops", "", "O"],
    "y": ["1", "oops", "", "-2e3", "inf"],
    "z": ["5", "6", "7", "", "9"],
    "split": ["train", "VAL", " test ", "training", "dev"],
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_of_a_table(suffix, tmp_path):
    path, frame = tmp_path / f"t{suffix}", pd.DataFrame(TABLE)
    frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    (rows,) = labelled_rows(path, LabelColumns("smiles", ["z", "y"], "split"))
    assert rows.smiles == TABLE["smiles"] and rows.targets.dtype == np.float64
    np.testing.assert_array_equal(rows.targets[:, 0], [5, 6, 7, np.nan, 9])
    np.testing.assert_array_equal(rows.targets[:, 1], [1, np.nan, np.nan, -2000, np.nan])
    assert rows.split.tolist() == [0, 1, 2, 0, 1]
    assert set(rows.rejected) == {1, 4} and "'y' is not a finite number: 'oops'" in rows.rejected[1]


def test_the_first_wrong_target_is_the_reason():
    rows = parse_chunk(pa.table({"smiles": ["C"], "y": ["a"], "z": ["b"]}), LabelColumns("smiles", ["z", "y"], None))
    assert rows.rejected == {0: "target 'z' is not a finite number: 'b'"}


def test_a_number_that_no_model_can_learn_is_a_reason():
    cells = ["1e300", "1e17", "-1e19", "0"]
    rows = parse_chunk(pa.table({"smiles": ["C"] * 4, "y": cells}), LabelColumns("smiles", ["y"], None))
    assert rows.rejected == {row: f"target 'y' is too large: {cells[row]!r}" for row in (0, 2)}
    np.testing.assert_array_equal(rows.targets[:, 0], [np.nan, 1e17, np.nan, 0])


def test_an_infinite_number_is_a_reason():
    rows = parse_chunk(pa.table({"smiles": ["C"], "y": [-np.inf]}), LabelColumns("smiles", ["y"], None))
    assert rows.rejected == {0: "target 'y' is not a finite number: '-inf'"} and np.isnan(rows.targets[0, 0])


def test_rows_without_labels_or_splits():
    rows = parse_chunk(pa.table({"mol": ["C", None], "y": [1, 2]}), LabelColumns("mol", [], None))
    assert rows.smiles == ["C", ""] and rows.rejected == {} and rows.split.tolist() == [-1, -1]
    assert rows.targets.shape == (2, 0)


def test_rows_of_a_smiles_file(tmp_path):
    (tmp_path / "t.smi").write_text("CCO ethanol\nC 7\n")
    (rows,) = labelled_rows(tmp_path / "t.smi", LabelColumns("smiles", ["name"], None))
    assert rows.smiles == ["CCO", "C"] and set(rows.rejected) == {0} and rows.targets[1] == 7


def test_the_word_of_a_row_without_label_does_not_matter():
    chunk = pa.table({"smiles": ["C", "N"], "y": ["1", ""], "split": ["train", ""]})
    assert parse_chunk(chunk, LabelColumns("smiles", ["y"], "split")).split.tolist() == [0, -1]


def test_the_word_of_every_row_matters_without_labels():
    chunk = pa.table({"smiles": ["C", "N"], "split": ["train", ""]})
    with pytest.raises(InputError, match="row 2: 'split' is ''"):
        parse_chunk(chunk, LabelColumns("smiles", [], "split"))


def test_rows_are_counted_over_chunks():
    chunks = [pa.table({"smiles": ["C"] * 3, "split": ["train", "train", word]}) for word in ("test", "nowhere")]
    with pytest.raises(InputError, match="row 6: 'split' is 'nowhere'"):
        list(parse_chunks(chunks, LabelColumns("smiles", [], "split")))


def test_bytes_that_are_no_utf_8_are_taken_for_latin_1():
    chunk = pa.table({"smiles": [b"caf\xe9"], "y": [b"\xb5"]})
    rows = parse_chunk(chunk, LabelColumns("smiles", ["y"], None))
    assert rows.smiles == ["caf\u00e9"] and "'\u00b5'" in rows.rejected[0]


# --- names of targets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("a,b", ["a", "b"], ["a", "b"]),
        ("a, b,", ["a", "b"], ["a", "b"]),
        ("a,b", ["a,b"], ["a,b"]),
        ('"a,b",c', ["a,b", "c"], ["a,b", "c"]),
        ('c, "a,b"', ["a,b", "c"], ["c", "a,b"]),
        (None, ["a"], []),
    ],
)
def test_quoted_target_names(text, columns, expected):
    assert target_names(text, columns) == expected


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip),
        min_size=1,
        unique=True,
    )
)
def test_names_of_targets_and_back(names):
    assert target_names(join_names(names), names) == names


def test_a_target_is_no_split():
    """A column split that is asked for says nothing of splits."""
    found = find_columns(["smiles", "split", "y"], DataConfig(targets="split,y"), "t.csv")
    assert found.targets == ["split", "y"] and found.split is None
