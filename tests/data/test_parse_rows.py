"""Roles of the columns of a table, and parsing of labels and splits."""

import datetime
import shlex
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.config import DataConfig, join_names, quote_item
from graphslice.data.cells import parse_number_column
from graphslice.data.columns import TableColumns, find_columns, find_smiles_column, target_names
from graphslice.data.loaders import load_dataset
from graphslice.data.rows import parse_chunk, parse_splits
from graphslice.data.tables import Rows
from graphslice.data.targets import infer_target
from graphslice.errors import InputError

METHODS = ("random", "scaffold")


# --- roles of the columns -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "requested", "expected"),
    [
        (["id", "smiles"], None, "smiles"),
        (["SMILES ", "y"], None, "SMILES "),
        (["smi", "canonical_smiles"], None, "canonical_smiles"),
        (["mol", "structure"], None, "mol"),
        (["Drug_ID", "Drug", "Y"], None, "Drug"),
        (["Ligand SMILES", "mol"], None, "Ligand SMILES"),
        (["smiles_2", "SMILES"], None, "SMILES"),
        (["smiles", "other"], "other", "other"),
        (["Smiles", "smiles"], None, "Smiles"),
    ],
)
def test_smiles_column_is_found(columns, requested, expected):
    assert find_smiles_column(columns, requested, "t.csv") == expected


@pytest.mark.parametrize(
    ("columns", "requested", "reason"),
    [
        (["smiles", "y"], "smile", "'smile'.*did you mean 'smiles'"),
        (["a", "b"], None, "which column holds the SMILES.*data.smiles_column.*'a', 'b'"),
        (["a title"], None, "'a title'; if a later line names them"),
    ],
)
def test_missing_smiles_column_is_rejected(columns, requested, reason):
    with pytest.raises(InputError, match=reason):
        find_smiles_column(columns, requested, "t.csv")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y", ["y"]),
        ("z,y", ["z", "y"]),
        (" z , y ,", ["z", "y"]),
        ("a,b", ["a,b"]),
        ('"a,b",z', ["a,b", "z"]),
        ('z, "a,b"', ["z", "a,b"]),
        (None, []),
        ("", []),
    ],
)
def test_target_names_are_parsed(text, names):
    assert target_names(text, ["smiles", "y", "z", "a,b"]) == names


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"targets": "z, y"}, TableColumns("smiles", ["z", "y"], "split")),
        ({"split": "fold", "smiles_column": "y"}, TableColumns("y", [], "fold")),
        ({"split": "scaffold"}, TableColumns("smiles", [], None)),
    ],
)
def test_column_roles_are_found(settings, expected):
    columns = ["smiles", "y", "z", "split", "fold"]
    assert find_columns(columns, DataConfig(**settings), "t.csv", METHODS) == expected


@pytest.mark.parametrize(
    ("settings", "methods", "reason"),
    [
        ({"targets": "yy"}, (), r"t\.csv has no column 'yy' .did you mean 'y'"),
        ({"targets": "smiles,y"}, (), r"t\.csv: 'smiles' cannot be the SMILES and a target"),
        ({"split": "randm"}, METHODS, "no column 'randm' .did you mean 'random'"),
    ],
)
def test_unknown_columns_are_rejected(settings, methods, reason):
    with pytest.raises(InputError, match=reason):
        find_columns(["smiles", "y", "split", "fold"], DataConfig(**settings), "t.csv", methods)


@pytest.mark.parametrize(
    "columns", [["smiles", "y", "y"], ["smiles", "smiles", "y"], ["smiles", "y", "split", "split"]]
)
def test_repeated_used_column_is_rejected(columns):
    with pytest.raises(InputError, match=r"t\.csv has two columns called"):
        find_columns(columns, DataConfig(targets="y"), "t.csv")


# --- inference of the target ----------------------------------------------------------------------


def target_of(*chunks: dict, split: str | None = None, **settings) -> str:
    config = DataConfig(**settings, split=split)
    columns = find_columns(list(chunks[0]), config, "t.csv", METHODS)
    return infer_target([Rows(pa.table(chunk)) for chunk in chunks], columns, config, "t.csv")


def test_only_numeric_column_is_target():
    table = {"name": ["a", "b"], "smiles": ["C", "N"], "y": ["1", "2"], "fold": ["1", "2"]}
    assert target_of(table, split="fold") == "y"
    assert target_of({"smiles": ["C"] * 6, "Split": ["train", "test"] * 3, "y": [1] * 6}, split="random") == "y"


def test_number_in_later_chunk_makes_column_numeric():
    assert target_of({"smiles": ["C"], "y": [""], "z": ["a"]}, {"smiles": ["N"], "y": ["1"], "z": ["b"]}) == "y"


def test_numbers_beside_classes_are_ambiguous():
    """They may be catalogue numbers."""
    smiles, activity = ["C", "N", "O", "F"], ["active", "inactive", "active", ""]
    assert target_of({"smiles": smiles, "name": ["a", "b", "c", "d"], "y": [7, 8, 9, 11]}) == "y"
    assert target_of({"smiles": smiles, "name": ["a", "b", "c", "d"], "activity": activity}) == "activity"
    with pytest.raises(InputError, match=r"which columns are the targets.*the columns are 'cid', 'activity'"):
        target_of({"smiles": smiles, "cid": [11, 12, 13, 14], "activity": activity})


# --- numbers --------------------------------------------------------------------------------------


def parsed(cells: list, kind: pa.DataType | None = None) -> tuple[list, list]:
    """Parse a column: numbers (None instead of nan), and rows of empty cells."""
    numbers, empty = parse_number_column(Rows(pa.table({"y": pa.array(cells, kind)})), "y")
    assert numbers.dtype == np.float64 and empty.dtype == bool
    return [None if np.isnan(number) else number for number in numbers], np.flatnonzero(empty).tolist()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), (" 1.5\t", 1.5), ("\xa01.5\xa0", 1.5), ("-2e3", -2000), ("+1E-3", 0.001), (".5", 0.5), ("inf", np.inf)],
)
def test_numeric_texts_are_parsed(text, number):
    assert parsed([text.encode()]) == ([number], []) and parsed([text]) == ([number], [])


@pytest.mark.parametrize("text", ["a", "1,5", "1_000", "0x10", "True", "1 2", "\u0661", "."])
def test_other_texts_are_not_numbers(text):
    assert parsed([text]) == ([None], [])


@pytest.mark.parametrize("text", ["", "\xa0 ", "NA", "n/a", "<NA>", "Not tested", "#DIV/0!", "-", "\u2013"])
def test_texts_for_missing_values_are_empty(text):
    assert parsed([text]) == ([None], [0])


@pytest.mark.parametrize(
    ("cells", "kind", "numbers", "empty"),
    [
        ([1, None, 3], pa.int64(), [1, None, 3], [1]),
        ([1.5, float("nan"), float("inf")], pa.float64(), [1.5, None, np.inf], [1]),
        ([0.5, None], pa.float32(), [0.5, None], [1]),
        ([True, None, False], pa.bool_(), [None, None, None], [1]),  # words, used as classes
        ([Decimal("0.1"), None], pa.decimal128(5, 3), [0.1, None], [1]),
        ([datetime.date(2020, 1, 1), None], pa.date32(), [None, None], [1]),
        ([None, None], pa.null(), [None, None], [0, 1]),
    ],
    ids=str,
)
def test_arrow_types_are_parsed(cells, kind, numbers, empty):
    assert parsed(cells, kind) == (numbers, empty)


# --- splits ---------------------------------------------------------------------------------------


def test_split_names_are_parsed():
    words = ["train", "Training", "valid", " VAL ", "validation", "dev", "test"]
    result = parse_splits(words, "split")
    assert result.dtype == np.int8 and result.tolist() == [0, 0, 1, 1, 1, 1, 2]


def test_rows_without_needed_split_may_have_one():
    needed = np.array([True, False, False])
    assert parse_splits(["train", "nowhere", "test"], "split", needed).tolist() == [0, -1, 2]


# --- rows -----------------------------------------------------------------------------------------


def test_too_large_label_is_invalid():
    cells = ["1e300", "1e17", "-1e19", "0"]
    rows = parse_chunk(Rows(pa.table({"smiles": ["C"] * 4, "y": cells})), TableColumns("smiles", ["y"], None))
    assert rows.faults == {row: f"target 'y' is too large: {cells[row]!r}" for row in (0, 2)}
    np.testing.assert_array_equal(rows.targets[:, 0], [np.nan, 1e17, np.nan, 0])


# --- names of targets -----------------------------------------------------------------------------


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\r"), min_size=1).filter(
            str.strip
        ),
        min_size=1,
        unique=True,
    )
)
def test_joined_target_names_are_parsed_back(names):
    assert target_names(join_names(names), names) == names
    for name in names:
        (word,) = shlex.split(quote_item(name))
        assert target_names(word, ["other"]) == [name.strip()] and target_names(word, names) == [name]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_bounds_among_numbers_are_labels(suffix, tmp_path):
    cells = ["1.5", "> 10", "", " <0.01 ", ">=50", "\u22643", ">1e19", "~4", ">abc", "<-1e400"]
    frame = pd.DataFrame({"smiles": ["C" * n for n in range(1, 11)], "y": cells})
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    dataset = load_dataset(DataConfig(dataset=str(path)))
    assert dataset.target_names == ["y"] and dataset.tasks[0].kind == "regression"
    inf = np.inf
    bounds = dataset.bounds(np.arange(10))[:, 0].tolist()
    assert bounds[:6] == [[-inf, inf], [10, inf], [-inf, inf], [-inf, 0.01], [50, inf], [-inf, 3]]
    assert bounds[6:] == [[-inf, inf]] * 4
    assert np.isnan(dataset.targets[1:]).all() and dataset.targets[0] == 1.5
    assert set(dataset.rejected) == {2, 6, 7, 8, 9}
    assert dataset.rejected[2] == "no target value" and "too large: '>1e19'" in dataset.rejected[6]
    assert "not a finite number: '>abc'" in dataset.rejected[8] and "too large: '<-1e400'" in dataset.rejected[9]


# --- weights --------------------------------------------------------------------------------------


def weighted(tmp_path, cells: list[str], **settings: str):
    rows = "".join(f"{'C' * (n + 1)},{n},{cell}\n" for n, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text(f"smiles,y,w\n{rows}")
    return load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="y", weight_column="w", **settings))


def test_weights_of_rows_are_read(tmp_path):
    dataset = weighted(tmp_path, ["1", "0.5", "0", "1e3", "", "-1", "x", "inf", "1e19"])
    assert dataset.weights(np.arange(9)).tolist() == [1, 0.5, 0, 1000, 0, 0, 0, 0, 0]
    assert dataset.rejected == {2: "weight 0"} | dict.fromkeys(
        range(4, 9), "no weight from 0 to 1e18 in the column 'w'"
    )


def test_number_columns_of_all_text_types_are_parsed():
    """Columns of categories too, as pandas writes them."""
    words = ["1.5", None, "x", "", "1.5", "-2"]
    categories = pa.chunked_array([pa.array(words[:3]).dictionary_encode(), pa.array(words[3:]).dictionary_encode()])
    columns = [pa.array(words, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    for column in (categories, *columns, pa.chunked_array([], pa.string())):
        numbers, empty = parse_number_column(Rows(pa.table({"y": column})), "y")
        expected = [1.5, np.nan, np.nan, np.nan, 1.5, -2][: len(column)]
        np.testing.assert_array_equal(numbers, expected)
        assert empty.tolist() == [False, True, False, True, False, False][: len(column)]


def test_bounds_count_in_the_fingerprint(tmp_path):
    def fingerprint(cell: str) -> str:
        (tmp_path / "t.csv").write_text(f"smiles,y\nC,1\nCC,2\nCCC,{cell}\n")
        return load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"))).fingerprint()

    assert len({fingerprint(cell) for cell in (">3", ">4", "<3", "")}) == 4


def test_weights_count_in_the_fingerprint(tmp_path):
    assert weighted(tmp_path, ["1", "2"]).fingerprint() != weighted(tmp_path, ["1", "3"]).fingerprint()
