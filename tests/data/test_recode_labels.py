"""Labels of a store match those of the table from which it was made, whatever task is requested."""

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
FLAGS = [0, 1, 1, 0, None, 1]
LEVELS = [-1, 0, 1, 0, None, -1]


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (WORDS, Task("y", "multiclass", ("apple", "pear", "zebra"))),
        (WORDS, Task("y", "binary", ("zebra", "pear"))),
        (WORDS, Task("y", "binary", ("apple", "pear"))),
        (FLAGS, Task("y", "binary", ("1", "0"))),
        (LEVELS, "multiclass"),
        ([2.5, 2, 3, 2.5, None, 3], "multiclass"),
        (FLAGS, None),
        (WORDS, None),
    ],
)
def test_stored_labels_match_the_table(labels, task, tmp_path):
    """For the task of a model, that of the option, or the inferred one."""
    frame = pd.DataFrame({"smiles": ["C", "N", "O", "F", "CC", "CN"], "y": labels})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = DataConfig(str(tmp_path / "t.csv"), targets="y")
    featurize_dataset(data, GraphConfig(), tmp_path / "t.arrow", workers=1)
    tasks, option = ([task], None) if isinstance(task, Task) else (None, task)
    table, store = (
        load_dataset(replace(data, task=option, dataset=str(tmp_path / name)), tasks) for name in ("t.csv", "t.arrow")
    )
    np.testing.assert_array_equal(store.targets, table.targets)
    assert store.tasks == table.tasks == (tasks or table.tasks) and store.rejected == table.rejected


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
