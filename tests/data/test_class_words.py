from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from graphslice.config import DataConfig
from graphslice.data.class_words import class_notes
from graphslice.data.dataset_loaders import dataset_from_frame
from graphslice.data.infer_tasks import infer_tasks
from graphslice.errors import InputError
from graphslice.tasks import Task


def infer(cells: list[str], **config: str) -> Task:
    (task,) = infer_tasks([pa.table({"y": cells})], ["y"], DataConfig(**config), "t.csv")
    return task


def dataset(cells: list, tasks: list[Task] | None = None):
    frame = pd.DataFrame({"smiles": ["C" * (1 + row) for row in range(len(cells))], "y": cells})
    return dataset_from_frame(frame, DataConfig(targets="y"), tasks)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["yes", "Yes", "Y", "TRUE", "yes", "no", "N", "FALSE", "no"], ("no", "yes")),
        (["Active", "1", "yes", "Inactive", "0", "Inactive", "Active"], ("Inactive", "Active")),
        (["T", "F", "true", "F", "T"], ("F", "T")),
        (["y", "y", "YES", "Yes", "Yes", "n", "n", "No"], ("n", "Yes")),
        (["pos", "positive", "pos", "neg", "neg"], ("neg", "pos")),
        (["high  risk", "High Risk", "low risk", "high  risk"], ("high  risk", "low risk")),
        (["BBB+", "BBB-", "BBB+"], ("BBB-", "BBB+")),
        (["carcinogen", "noncarcinogen", "carcinogen"], ("noncarcinogen", "carcinogen")),
        (["Blocker", "not a blocker", "Blocker"], ("not a blocker", "Blocker")),
        (["DILI", "No DILI", "DILI"], ("No DILI", "DILI")),
        (["stable", "unstable", "stable"], ("unstable", "stable")),
        (["agonist", "antagonist", "agonist"], ("agonist", "antagonist")),
    ],
)
@pytest.mark.parametrize("task", [None, "binary"])
def test_words_for_yes_and_no_are_two_classes(cells, classes, task):
    assert infer(cells, task=task) == Task("y", "binary", classes)


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["active", "inactive", "inconclusive"] * 3, ("active", "inactive", "inconclusive")),
        (["A", "C", "G", "T", "N"] * 3, ("A", "C", "G", "N", "T")),
        (["F", "N", "P"] * 3, ("F", "N", "P")),
    ],
)
def test_other_classes_stay_apart(cells, classes):
    assert infer(cells) == Task("y", "multiclass", classes)


def test_requested_classes_are_not_merged():
    assert len(infer(["yes", "Y", "no", "maybe"] * 3, task="multiclass").classes) == 4


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["yes", "Y", "no", "maybe"] * 3, r"'y', 'yes' mean the same class, but there are others too \('maybe'\)"),
        (["yes", "no", "N", "+"] * 3, r"'n', 'no' mean the same class, but there are others too \('\+'\)"),
        (["yes", "Y"] * 3, "'y', 'yes' mean the same class, but there is no other class"),
    ],
)
def test_contradictory_words_are_rejected(cells, message):
    with pytest.raises(InputError, match=rf"t\.csv: the target 'y': {message}.*--task multiclass"):
        infer(cells)


def test_labels_follow_the_words_and_other_words_are_listed():
    found = dataset(["yes", "Yes", "Y", "TRUE", "yes", "no", "N", "", "FALSE", "no"])
    np.testing.assert_array_equal(found.targets[:, 0], [1, 1, 1, 1, 1, 0, 0, np.nan, 0, 0])
    assert found.notes == ("classes of y: no = N, FALSE; yes = Yes, Y, TRUE",)


def test_words_among_numbers_are_read_as_their_classes():
    found = dataset(["0", "1", "1.0", "1", "yes", "No", "?"])
    np.testing.assert_array_equal(found.targets[:, 0], [0, 1, 1, 1, 1, 0, np.nan])
    assert found.notes == ("classes of y: 0 = No; 1 = yes",)
    assert found.rejected == {6: "target 'y' is none of its 2 classes: '?'"}


def test_a_column_of_one_word_per_class_needs_no_note():
    assert dataset(["yes", "no", "yes"]).notes == () == dataset([1, 0, 1]).notes == dataset([True, False]).notes


def test_other_data_are_read_with_the_classes_of_a_model():
    found = dataset(["Inactive", "TRUE", "0", "maybe"], [Task("y", "binary", ("no", "yes"))])
    np.testing.assert_array_equal(found.targets[:, 0], [0, 1, 0, np.nan])
    assert found.rejected == {3: "target 'y' is none of its 2 classes: 'maybe'"}


def test_numbers_that_may_be_codes_are_listed():
    """EC numbers and identifiers of equal value are one class; 1 and 1.0 are so everywhere."""
    cells = ["1", "1.0", "01", "2.7", "2.70", "3", "002", "2"]
    table = pa.table({"y": cells})
    task = Task("y", "multiclass", ("1", "2", "2.7", "3"))
    assert class_notes([table], [task]) == ["classes of y: 1 = 01; 2 = 002; 2.7 = 2.70"]
