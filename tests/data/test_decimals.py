import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from graphslice.config import DataConfig, GraphConfig
from graphslice.data.cells import has_comma, parse_number, plain_numbers
from graphslice.data.loaders import dataset_from_frame, load_dataset
from graphslice.data.preprocess import featurize_dataset
from graphslice.data.tables import Rows, texts


@pytest.mark.parametrize(
    ("cell", "plain"),
    [
        ("3,14", "3.14"),
        ("\u22120,5", "\u22120.5"),
        (" 2,5e-3 ", " 2.5e-3 "),
        (">1000,5", ">1000.5"),
        ("7", "7"),
        ("1.25", "1.25"),
    ],
)
def test_numbers_with_decimal_commas_are_converted(cell, plain):
    assert texts(plain_numbers(Rows(pa.table({"y": [cell]})), "comma").table["y"]) == [plain]


@pytest.mark.parametrize(
    "cell", ["1.234", "1.234,5", "1,234,567", "12,34.5", "C1,2", "1,5 mg", ",", "\u0661,5", "[1,5]", "1.234.567"]
)
def test_other_cells_do_not_become_numbers(cell):
    (plain,) = texts(plain_numbers(Rows(pa.table({"y": [cell]})), "comma").table["y"])
    assert np.isnan(parse_number(plain))


def test_commas_of_numbers_are_recognised():
    assert all(map(has_comma, ["1,5", ">1,5", "1,250,000", "1.250,5", "1,250.5", "-,5e3"]))
    assert not any(map(has_comma, ["", "1.5", "-3", "1e5", ">5", "word", "a,b", ",", "1,5 mg", "[1,5]"]))


def test_other_columns_types_and_cells_stay_as_they_are():
    chunk = pa.table({"y": ["1,5", "a", None], "n": [1.5, 2, 3], "z": [b"1,5", b"\xff", b""]})
    rows = Rows(chunk)
    plain = plain_numbers(rows, "comma", ["y", "n"]).table
    assert texts(plain["y"]) == ["1.5", "a", ""] and plain["n"] == chunk["n"] and plain["z"] == chunk["z"]
    assert texts(plain_numbers(rows, "comma").table["z"]) == ["1.5", "\xff", ""]
    assert plain_numbers(rows, None) is rows


GERMAN = 'smiles;y;x\nC;1,5;"1000,5"\nCC;">1000,5";0,5\nCCC;-;7\nCCCC;2;"1.234"\nCCCCC;"1.234";2\n'


def load(tmp_path, **settings):
    (tmp_path / "t.csv").write_text(GERMAN)
    return load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="y", **settings))


def test_labels_bounds_and_feature_columns_are_read(tmp_path):
    dataset = load(tmp_path, decimal="comma", features="x")
    np.testing.assert_array_equal(dataset.targets[:, 0], [1.5, np.nan, np.nan, 2, np.nan])
    assert dataset.all_labels.bounds[1, 0].tolist() == [1000.5, np.inf]
    np.testing.assert_array_equal(dataset.columns[:, 0], np.float32([1000.5, 0.5, 7, np.nan, 2]))
    assert dataset.rejected[2] == "no target value" and "'1.234 (a point among" in dataset.rejected[4]


def test_frame_and_preprocessed_dataset_have_the_labels_of_the_file(tmp_path):
    dataset = load(tmp_path, decimal="comma")
    frame = pd.read_csv(tmp_path / "t.csv", sep=";", dtype=str)
    from_frame = dataset_from_frame(frame, DataConfig(targets="y", decimal="comma"))
    np.testing.assert_array_equal(from_frame.targets, dataset.targets)
    (tmp_path / "u.csv").write_text("smiles;y\nC;1,5\nCC;1000,5\n")
    data = DataConfig(dataset=str(tmp_path / "u.csv"), targets="y", decimal="comma")
    store = featurize_dataset(data, GraphConfig(), tmp_path / "t.arrow", workers=1)
    assert store.targets[:, 0].tolist() == [1.5, 1000.5]
