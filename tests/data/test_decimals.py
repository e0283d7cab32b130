from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.config import DataConfig, GraphConfig
from graphslice.data.dataset_loaders import dataset_from_frame, load_dataset
from graphslice.data.decimals import decimal_advice, decimal_readings, number_advice, plain_number, plain_numbers
from graphslice.data.preprocess import featurize_dataset
from graphslice.data.tables import texts
from graphslice.errors import InputError


@pytest.mark.parametrize(
    ("cell", "comma", "point"),
    [
        ("3,14", "3.14", None),
        ("1.234,5", "1234.5", None),
        ("1,234.5", None, "1234.5"),
        ("1 234", "1234", "1234"),
        ("1\xa0234,5", "1234.5", None),
        ("1\u202f234\u202f567.5", None, "1234567.5"),
        ("1'000.5", None, "1000.5"),
        ("1.234.567", "1234567", None),
        ("1,234,567", None, "1234567"),
        ("1,234", "1.234", "1234"),
        ("1.234", None, "1.234"),
        ("0,123", "0.123", None),
        ("-0,5", "-0.5", None),
        ("\u22120,5", "\u22120.5", None),
        (",5", ".5", None),
        (" 2,5e-3 ", "2.5e-3", None),
        (">1.000,5", ">1000.5", None),
        ("\u2264 1,5", "\u2264 1.5", None),
        ("1,23,456", None, None),
        ("1.234 567,0", None, None),
        ("12,34.5", None, None),
        ("C1,2", None, None),
        ("1,5 mg", None, None),
        (",", None, None),
        ("", None, None),
        ("\u0661,5", None, None),
        ("[1,5]", None, None),
    ],
)
def test_numbers_are_converted_in_the_given_notation_alone(cell, comma, point):
    assert (plain_number(cell, "comma"), plain_number(cell, "point")) == (comma, point)


@pytest.mark.parametrize(
    ("cell", "number", "unit"),
    [
        ("> 100 uM", "> 100", "uM"),
        ("100 nM", "100", "nM"),
        ("5 %", "5", "%"),
        ("5%", "5", "%"),
        ("\u22641.5e-3mg/mL", "\u22641.5e-3", "mg/mL"),
        (" -.5 \xb5g ", "-.5", "\xb5g"),
        ("1,5 kcal/mol", "1,5", "kcal/mol"),
    ],
)
def test_units_are_named_with_the_number_to_write(cell, number, unit):
    assert number_advice(cell).startswith(f"leave out the unit '{unit}': write {number}, and all numbers of the column")


@pytest.mark.parametrize(
    "cell", ["uM", "n.d.", "about 5 uM", "5 or 6", "1-2 h", "5 +- 1", "CCO", "12", "1e400", ">-1E+5", "", "%"]
)
def test_other_cells_have_no_unit(cell):
    assert number_advice(cell) == ""


@given(st.floats(-1e12, 1e12).map(lambda number: round(number, 6)), st.sampled_from(",. '\xa0"))
def test_every_formatted_number_is_read_back(number, thousands):
    text = f"{number:,.6f}"
    decimal = "comma" if thousands == "." else "point"
    text = text.translate({ord(","): thousands, ord("."): "," if decimal == "comma" else "."})
    assert float(plain_number(text, decimal)) == number


@pytest.mark.parametrize("cell", ["", "1.5", "-3", "1e5", ">5", "<= 0.1", "word", "1.234", "n.d."])
def test_no_option_is_offered_for_plain_numbers_bounds_and_words(cell):
    assert decimal_readings(cell) == {} and decimal_advice(cell) == ""


def test_other_columns_types_and_cells_stay_as_they_are():
    chunk = pa.table({"y": ["1,5", "a", None], "n": [1.5, 2, 3], "z": [b"1,5", b"\xff", b""]})
    plain = plain_numbers(chunk, "comma", ["y", "n"])
    assert texts(plain["y"]) == ["1.5", "a", ""] and plain["n"] == chunk["n"] and plain["z"] == chunk["z"]
    assert texts(plain_numbers(chunk, "comma")["z"]) == ["1.5", "\xff", ""]
    assert plain_numbers(chunk, None) is chunk


GERMAN = 'smiles;y;x;note\nC;1,5;"1.000,5";a\nCC;">1.000,5";0,5;b\nCCC;-;7;c\nCCCC;2;"1.234";d\nCCCCC;"1.234";2;e\n'


def load(tmp_path, **settings):
    (tmp_path / "t.csv").write_text(GERMAN)
    return load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="y", **settings))


def test_labels_bounds_and_feature_columns_are_read(tmp_path):
    dataset = load(tmp_path, decimal="comma", features="x")
    np.testing.assert_array_equal(dataset.targets[:, 0], [1.5, np.nan, np.nan, 2, np.nan])
    assert dataset.all_labels.bounds[1, 0].tolist() == [1000.5, np.inf]
    np.testing.assert_array_equal(dataset.columns[:, 0], np.float32([1000.5, 0.5, 7, np.nan, 2]))
    assert dataset.rejected == {
        2: "no target value",
        4: "target 'y' is not a finite number: '1.234 (write 1234 or 1,234)'",
    }


def test_frame_and_preprocessed_dataset_have_the_labels_of_the_file(tmp_path):
    dataset = load(tmp_path, decimal="comma")
    frame = pd.read_csv(tmp_path / "t.csv", sep=";", dtype=str)
    from_frame = dataset_from_frame(frame, DataConfig(targets="y", decimal="comma"))
    np.testing.assert_array_equal(from_frame.targets, dataset.targets)
    (tmp_path / "u.csv").write_text("smiles;y\nC;1,5\nCC;1.000,5\n")
    data = DataConfig(dataset=str(tmp_path / "u.csv"), targets="y", decimal="comma")
    store = featurize_dataset(data, GraphConfig(), tmp_path / "t.arrow", workers=1)
    assert store.targets[:, 0].tolist() == [1.5, 1000.5]


def test_unnamed_target_with_decimal_commas_is_found_and_the_option_named(tmp_path):
    (tmp_path / "t.csv").write_text("id;smiles;y\na;C;1,5\nb;CC;2,5\nc;CCC;3\n")
    with pytest.raises(InputError, match=r"'y' has decimal commas .*, such as '1,5' in row 1: give --decimal comma"):
        load_dataset(DataConfig(dataset=str(tmp_path / "t.csv")))
    assert load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), decimal="comma")).targets.tolist() == [
        [1.5],
        [2.5],
        [3],
    ]


def test_other_settings_are_rejected():
    with pytest.raises(InputError, match=r"data\.decimal must be comma or point, not ','"):
        DataConfig(decimal=",")
