"""Labels of a store match those of the table from which it was made, whatever task is requested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from graphslice.config import DataConfig, GraphConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError
from graphslice.tasks import Task

WORDS = ["pear", "zebra", "pear", "zebra", None, "zebra"]
NUMBERS = [1, 2, 3, 2, None, 1]
FLAGS = [0, 1, 1, 0, None, 1]
LEVELS = [-1, 0, 1, 0, None, -1]


def table_and_store(folder, labels, task=None, tasks=None):
    frame = pd.DataFrame({"smiles": ["C", "N", "O", "F", "CC", "CN"], "y": labels})
    frame.to_csv(folder / "t.csv", index=False)
    data = DataConfig(str(folder / "t.csv"), targets="y")
    featurize_dataset(data, GraphConfig(), folder / "t.arrow", workers=1)
    data = replace(data, task=task)
    return load_dataset(data, tasks), load_dataset(replace(data, dataset=str(folder / "t.arrow")), tasks)


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (WORDS, Task("k", "multiclass", ("apple", "pear", "zebra"))),
        (WORDS, Task("k", "binary", ("zebra", "pear"))),
        (WORDS, Task("k", "binary", ("apple", "pear"))),
        (NUMBERS, Task("k", "multiclass", ("1", "2", "3"))),
        (FLAGS, Task("k", "binary", ("0", "1"))),
        (FLAGS, Task("k", "binary", ("1", "0"))),
    ],
)
def test_stored_labels_match_the_table_for_the_tasks_of_a_model(labels, task, tmp_path):
    table, store = table_and_store(tmp_path, labels, tasks=[task])
    np.testing.assert_array_equal(store.targets, table.targets)
    assert store.tasks == table.tasks == [replace(task, name="y")]
    assert store.rejected == table.rejected


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (NUMBERS, "multiclass"),
        (LEVELS, "multiclass"),
        ([2.5 if n == 2 else n for n in NUMBERS], "multiclass"),
        (FLAGS, "binary"),
        (FLAGS, None),
        (WORDS, "y=binary"),
        (WORDS, None),
    ],
)
def test_stored_labels_match_the_table_for_the_task_option(labels, task, tmp_path):
    table, store = table_and_store(tmp_path, labels, task)
    np.testing.assert_array_equal(store.targets, table.targets)
    assert store.tasks == table.tasks and store.rejected == table.rejected


def test_task_option_of_some_targets_matches_the_table(tmp_path):
    """With classes and numbers in one table, and a name with a comma."""
    frame = pd.DataFrame({"smiles": ["C", "N", "O", "F"], "word": list("abab"), "n": [1, 2, 1, 2], "x,y": [0, 1, 1, 0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = DataConfig(str(tmp_path / "t.csv"), targets='word,n,"x,y"')
    featurize_dataset(data, GraphConfig(), tmp_path / "t.arrow", workers=1)
    for task in ("word=binary,n=binary", 'n=binary,"x,y"=binary', None):
        tasks_by_file = [
            load_dataset(replace(data, task=task, dataset=str(tmp_path / name))).tasks for name in ("t.csv", "t.arrow")
        ]
        assert tasks_by_file[0] == tasks_by_file[1]
    with pytest.raises(InputError, match="not numeric"):
        load_dataset(replace(data, task="word=regression", dataset=str(tmp_path / "t.arrow")))
