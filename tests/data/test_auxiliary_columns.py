"""Auxiliary columns of tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from graphslice.config import DataConfig
from graphslice.data.dataset_loaders import dataset_from_frame, load_dataset
from graphslice.errors import InputError

SMILES = ["C" * n for n in range(1, 10)]


@pytest.fixture
def table(tmp_path):
    """``table(file, **columns)`` writes a table of nine alkanes, and returns its path."""

    def write(file: str = "t.csv", **columns: list) -> str:
        pd.DataFrame({"smiles": SMILES} | columns).to_csv(tmp_path / file, index=False)
        return str(tmp_path / file)

    return write


Y, LOGD = [1, 2, 3, 4, None, 6, 7, 9, 8], [0.5, None, 2, -1, 3, None, 0, 1, 2]


def test_auxiliary_columns_are_read(table):
    path = table(y=Y, logd=LOGD, screen=["no", "yes"] * 4 + ["no"])
    dataset = load_dataset(DataConfig(dataset=path, auxiliary="logd,screen"))
    labels = dataset.auxiliary["molecule"]
    assert dataset.target_names == dataset.all_target_names == ["y"] and labels.names == ("logd", "screen")
    np.testing.assert_array_equal(labels.values[:, 0], np.array(LOGD, float))
    assert labels.values[:, 1].tolist() == [0, 1] * 4 + [0]
    assert dataset.is_auxiliary().tolist() == [row == 4 for row in range(9)] and 4 in dataset.rejected


def test_rows_of_the_auxiliary_file_are_appended(table):
    path, other = table(y=Y, logd=LOGD), table("more.csv", logd=range(9), screen=[0, 1] * 4 + [0])
    dataset = load_dataset(DataConfig(dataset=path, targets="y", auxiliary="screen,logd", auxiliary_file=other))
    labels = dataset.auxiliary["molecule"]
    assert len(dataset) == 18 and list(dataset.smiles) == SMILES * 2 and labels.names == ("screen", "logd")
    assert np.isnan(dataset.targets[9:]).all() and np.isnan(labels.values[:9, 0]).all()
    assert labels.values[9:, 1].tolist() == list(range(9)) and dataset.is_auxiliary()[9:].all()


def test_auxiliary_labels_count_in_the_fingerprint(table):
    found = [
        load_dataset(DataConfig(dataset=table(y=Y, a=values), targets="y", auxiliary=auxiliary)).fingerprint()
        for values, auxiliary in [(LOGD, None), (LOGD, "a"), (LOGD[::-1], "a")]
    ]
    assert len(set(found)) == 3


def test_auxiliary_labels_of_rows_of_the_test_set_are_not_read(table):
    path = table(y=Y, logd=LOGD, split=["train"] * 4 + ["test"] * 5)
    dataset = load_dataset(DataConfig(dataset=path, targets="y", auxiliary="logd"))
    assert np.isnan(dataset.auxiliary["molecule"].values[4, 0]) and not dataset.is_auxiliary().any()


def test_auxiliary_columns_of_a_frame_are_kept_in_its_table():
    frame = pd.DataFrame({"smiles": SMILES, "y": Y, "logd": LOGD, "w": [1.0] * 9, "other": [1, 2, 3] * 3})
    config = DataConfig(targets="y", auxiliary="logd", weight_column="w")
    assert dataset_from_frame(frame, config).table.column_names == ["smiles", "y", "w", "logd"]


def test_auxiliary_labels_of_rows_without_a_weight_are_not_read(table):
    """Rows of the auxiliary file have the mean weight of the others."""
    path = table(y=Y, logd=LOGD, w=[0, 0.5, 0.5, 0.5, "", 0.5, 0.5, 1.5, 1.5])
    other = table("more.csv", logd=range(9))
    config = DataConfig(dataset=path, targets="y", auxiliary="logd", weight_column="w", auxiliary_file=other)
    dataset = load_dataset(config)
    labels = dataset.auxiliary["molecule"].values
    assert np.isnan(labels[[0, 4]]).all() and labels[2] == 2
    assert dataset.is_auxiliary().tolist() == [False] * 9 + [True] * 9
    assert dataset.weights(np.arange(9, 18)).tolist() == pytest.approx([5.5 / 7] * 9)


TWICE = [2.0 if y is None else 2 * y + 1 for y in Y]
WRONG = {
    "target": ({"auxiliary": "y", "targets": "y"}, "auxiliary names 'y', which is a target"),
    "copy": ({"auxiliary": "twice"}, "'twice' is a copy of the target 'y' in 8 rows"),
    "unknown": ({"auxiliary": "logdd"}, "has no auxiliary column 'logdd' .did you mean 'logd'"),
    "nowhere": ({"auxiliary": "logdd", "auxiliary_file": "t.csv"}, "'logdd', which is a column of neither table"),
    "classes": ({"auxiliary": "kind"}, "'kind' has 3 classes, not numbers or two classes"),
    "words": ({"auxiliary": "name"}, "'name' is not numeric"),
    "empty": ({"auxiliary": "empty"}, "'empty' is empty in every row"),
    "twice": ({"auxiliary": "logd,logd"}, "auxiliary names 'logd' twice"),
    "no names": ({"auxiliary_file": "t.csv"}, "name its columns with --auxiliary"),
    "no file": ({"auxiliary": "logd", "auxiliary_file": "none.csv"}, "none.csv"),
    "smiles": ({"auxiliary": "smiles"}, "'smiles' cannot be an auxiliary column and have another role"),
    "atoms": ({"auxiliary": "logd", "level": "atom"}, "needs molecule-level targets"),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_unusable_auxiliary_columns_are_rejected(table, tmp_path, settings, message):
    columns = {"y": Y, "logd": LOGD, "twice": TWICE, "kind": ["low", "mid", "high"] * 3}
    path = table(**columns, name=[f"m{n}" for n in range(9)], empty=[None] * 9)
    if file := settings.get("auxiliary_file"):
        settings = settings | {"auxiliary_file": str(tmp_path / file)}
    with pytest.raises(InputError, match=message):
        load_dataset(DataConfig(**({"dataset": path, "targets": "y"} | settings)))


def test_classes_are_those_of_both_tables(table):
    path, other = table(y=Y, hit=["no"] * 9), table("more.csv", hit=["yes", "no", "yes"] * 3)
    data = DataConfig(dataset=path, targets="y", auxiliary="hit", auxiliary_file=other)
    assert load_dataset(data).auxiliary["molecule"].values[:, 0].tolist() == [0] * 9 + [1, 0, 1] * 3


def test_cells_that_are_not_learned_are_counted(table):
    path = table(y=Y, ic50=["1", ">5", "<2", "3", "x", "", "4", "5", "6"])
    dataset = load_dataset(DataConfig(dataset=path, targets="y", auxiliary="ic50"))
    assert any("2 bounds in auxiliary columns are not learned" in note for note in dataset.notes)
    assert any("1 rows are not learned; row 5: target 'ic50'" in note for note in dataset.notes)


def test_smiles_column_of_the_auxiliary_file_may_be_that_of_the_table(tmp_path):
    frame = pd.DataFrame({"mol1": SMILES, "other": SMILES, "y": Y, "a": LOGD})
    frame.to_csv(tmp_path / "t.csv", index=False)
    path = str(tmp_path / "t.csv")
    data = DataConfig(dataset=path, smiles_column="mol1", targets="y", auxiliary="a", auxiliary_file=path)
    assert len(load_dataset(data)) == 18


def test_auxiliary_rows_stand_before_those_of_a_test_file(table):
    path, more, test = table(y=Y, logd=LOGD), table("more.csv", logd=range(9)), table("test.csv", y=Y)
    data = DataConfig(dataset=path, targets="y", auxiliary="logd", auxiliary_file=more, test_file=test)
    dataset = load_dataset(data)
    assert len(dataset) == 27 and dataset.splits["test"].tolist() == [n for n in range(18, 27) if n != 22]
    assert np.isnan(dataset.auxiliary["molecule"].values[18:]).all()
