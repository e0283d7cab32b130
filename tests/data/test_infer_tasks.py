import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.tables import Rows
from graphslice.data.targets import infer_tasks
from graphslice.errors import InputError
from graphslice.tasks import TASK_KINDS, Task


def infer(cells: list, *, chunks: int = 1, **config: str) -> Task:
    """Infer the task of a column y with these cells, divided into ``chunks`` chunks."""
    size = -(-len(cells) // chunks)
    tables = [Rows(pa.table({"y": pa.array(cells[i : i + size])})) for i in range(0, len(cells), size)]
    (task,) = infer_tasks(tables, ["y"], DataConfig(**config), "t.csv")
    return task


@pytest.mark.parametrize(
    ("cells", "kind", "classes"),
    [
        (["1.5", "2", "", "-3"], "regression", ()),
        (["0", "1", "1", ""], "binary", ("0", "1")),
        ([True, False, None, True], "binary", ("False", "True")),
        (["yes", "no", "YES", " No"], "binary", ("no", "yes")),
        (["Inactive", "Active", "Active", "inconclusive"], "binary", ("Inactive", "Active")),
        (["binder", "non-binder", "Binder"], "binary", ("non-binder", "binder")),
        (["0 %", "10 %", "0 %"], "binary", ("0 %", "10 %")),
        (["high  risk", "High Risk", "low risk"], "binary", ("high  risk", "low risk")),
        (["a", "b", "c"] * 3, "multiclass", ("a", "b", "c")),
        (["yes", "Y", "no"] * 3, "multiclass", ("no", "Y", "yes")),
        (["low", "high", "mid", "1"] * 3, "multiclass", ("1", "high", "low", "mid")),
        ([f"{n} %" for n in range(3)] * 3, "multiclass", ("0 %", "1 %", "2 %")),
        (["0", "1", "2"] * 9, "regression", ()),
        (["3.5", "3.5"], "regression", ()),
        (["1.5", "n/a?", "2.5", "~10"], "regression", ()),
        (["0", "1", "-", "#N/A", "-"], "binary", ("0", "1")),
        (["0", ">1", "1", "0"], "regression", ()),
        (["0", "1", "?", "1"], "binary", ("0", "1")),
        (["1.5", "None", "high", "2"], "regression", ()),
    ],
)
@pytest.mark.parametrize("chunks", [1, 3])
def test_task_is_inferred_from_values(cells, kind, classes, chunks):
    assert infer(cells, chunks=chunks) == Task("y", kind, classes)


@pytest.mark.parametrize(
    ("cells", "task", "kind", "classes"),
    [
        (["0", "1"], "regression", "regression", ()),
        (["1", "2", "2"], "binary", "binary", ("1", "2")),
        (["0", "10", "9"] * 9, "multiclass", "multiclass", ("0", "9", "10")),
        (["0", "1"], "multiclass", "binary", ("0", "1")),
        ([">10", "<10"], "binary", "binary", ("<10", ">10")),
        (["-0.0", "1", "0"], "binary", "binary", ("0", "1")),
        ([0.1 + 0.2, 0.3, 1e300], "binary", "binary", ("0.3", "1e+300")),
    ],
)
def test_configured_task_overrides_inference(cells, task, kind, classes):
    assert infer(cells, task=task) == Task("y", kind, classes)


@pytest.mark.parametrize(
    ("cells", "config", "reason"),
    [
        (["", None], {}, "the target 'y' is empty in every row"),
        (["a", "b"], {}, "'y' is not numeric"),
        (["yes", "Yes"], {}, "'y' is 'yes' in every row with a SMILES: there is nothing to learn"),
        (["a", "b", "c", "d"], {}, "'y' is not numeric .*give data.task y=multiclass"),
        (["0", "1", "2"], {"task": "binary"}, "'y' has more than 2 different values, .* give data.task y=multiclass"),
        ([str(n) for n in range(101)], {"task": "multiclass"}, "more than 100 different values"),
        (["a", "b"], {"task": "regression"}, "'y' is not numeric .*without units"),
        (["3"] * 9 + ["1,5"], {}, "row 10 is '1,5'.: give data.decimal comma"),
        (["[1, 2]", "[3]"], {}, "row 1 is '.1, 2.'.: for targets of atoms give data.level atom"),
        (["yes", "no", "no"], {"transform": "y=log"}, "'y' is binary, not regression"),
        (["1", "2"], {"transform": "exp"}, "data.transform must be none or log"),
        (["1", "2"], {"task": "z=binary"}, "data.task has no target 'z'"),
    ],
)
def test_unusable_columns_are_rejected(cells, config, reason):
    with pytest.raises(InputError, match=reason):
        infer(cells, **config)


@pytest.mark.parametrize("last", ["46", "yes/no"])
def test_rows_without_smiles_do_not_decide_the_task(last):
    """Such as a line of units below the header, or of sums at the end."""
    table = pa.table({"smiles": ["", *["C", "CC"] * 4, " "], "y": ["unit", *["0", "1"] * 4, last]})
    (task,) = infer_tasks([Rows(table)], ["y"], DataConfig(), "t.csv", "smiles")
    assert task == Task("y", "binary", ("0", "1"))


def test_log_transform_applies_to_regression_only():
    table = pa.table({"a": ["1", "2", "3"], "b": ["yes", "no", "no"]})
    tasks = infer_tasks([Rows(table)], ["a", "b"], DataConfig(transform="log"), "t.csv")
    assert [task.transform for task in tasks] == ["log", "none"]


@given(
    st.lists(
        st.sampled_from(["", "1", "0", "-0.0", "2.5", "yes", "no", "none", "inf", "1,5", "x y", "\u0661"]), min_size=1
    )
)
@settings(max_examples=200)
def test_any_cells_give_task_or_error(cells):
    try:
        task = infer(cells)
    except InputError as error:
        assert "'y'" in str(error)
    else:
        assert task.kind in TASK_KINDS and len(set(task.classes)) == len(task.classes)


def test_labels_are_class_indices(tmp_path):
    table = {"smiles": list("CNOFSP"), "y": ["Yes", "no", "YES", "", "maybe", "no"], "z": [1.5, 2, 3, 4, 5, "x"]}
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    config = DataConfig(str(tmp_path / "t.csv"), targets="y,z")
    tasks = [Task("y", "binary", ("no", "yes")), Task("z")]
    dataset = load_dataset(config, tasks)
    np.testing.assert_array_equal(dataset.targets[:, 0], [1, 0, 1, np.nan, np.nan, 0])
    assert (
        dataset.invalid_labels[4] == "target 'y' is none of its 2 classes: 'maybe'"
        and "'z'" in dataset.invalid_labels[5]
    )
    assert load_dataset(DataConfig(config.dataset, targets="z")).tasks == [Task("z")]
