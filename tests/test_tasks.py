import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphslice import tasks
from graphslice.errors import InputError
from graphslice.tasks import TASK_KINDS, Task, parse_per_target

TASKS = [
    Task("logs"),
    Task("active", "binary", ("no", "yes")),
    Task("clearance", transform="log"),
    Task("kind", "multiclass", ("a", "b", "c")),
]


def test_columns_and_outputs():
    names = ["logs", "active_prob_yes", "clearance", "kind_prob_a", "kind_prob_b", "kind_prob_c"]
    assert tasks.prediction_columns(TASKS) == names and tasks.num_outputs(TASKS) == 6
    assert [names[where] for where in tasks.output_slices(TASKS)] == [names[:1], names[1:2], names[2:3], names[3:]]


def test_predictions_match_torch():
    outputs = torch.randn(20, 6, dtype=torch.float64) * 5
    found = tasks.to_predictions(outputs.numpy(), TASKS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], outputs[:, 0], rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], outputs[:, 1].sigmoid(), rtol=1e-6)
    np.testing.assert_allclose(found[:, 2], outputs[:, 2].exp(), rtol=1e-6)
    np.testing.assert_allclose(found[:, 3:], outputs[:, 3:].softmax(1), rtol=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6))
def test_probabilities_are_valid_for_any_logits(outputs):
    found = tasks.to_predictions(np.array([outputs]), TASKS)
    assert 0 <= found[0, 1] <= 1 and found[0, 3:].sum() == pytest.approx(1, abs=1e-6)


def test_log_transform_is_inverted():
    labels = np.array([[1.0, 0.0, 3.0, 2.0], [np.nan, 1.0, np.nan, np.nan]])
    learned = tasks.to_training_scale(labels, TASKS)
    assert learned[0].tolist() == [1, 0, np.log(3), 2] and np.isnan(learned[1]).tolist() == [True, False, True, True]
    assert labels[0, 2] == 3  # the user's stay as they are
    assert tasks.to_predictions(np.array([[0, 0, np.log(3), 0, 0, 0]]), TASKS)[0, 2] == pytest.approx(3)


def test_predicted_classes_are_the_most_probable():
    assert tasks.predicted_classes(np.array([[0.2], [0.5], [np.nan]]), TASKS[1]) == ["no", "yes", None]
    found = tasks.predicted_classes(np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [np.nan] * 3]), TASKS[3])
    assert found == ["b", "a", None]


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": 3}, {"reference": [2.0, 1.0]}, {"reference": [float("nan")]},
        {"kind": "other"}, {"kind": "binary"}, {"kind": "multiclass", "classes": ["a", "b"]}, {"classes": ["a"]},
        {"classes": 3}, {"name": 3}, {"transform": "exp"}, {"later": 1},
        {"group": "<b>"}, {"better": "red"},
    ],
)  # fmt: skip
def test_invalid_plain_values_are_rejected(changes):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Task.from_dict({**Task("y").to_dict(), **changes})


def test_parse_per_target():
    names = ["a", "b", "a=b"]
    assert parse_per_target(None, names, TASK_KINDS, "data.task") == {}
    assert parse_per_target("binary", names, TASK_KINDS, "data.task") == dict.fromkeys(names, "binary")
    assert parse_per_target("a=binary, a=b=regression", names, TASK_KINDS, "data.task") == {
        "a": "binary",
        "a=b": "regression",
    }
    quoted = parse_per_target('"IC50, nM"=regression,b=binary', ["IC50, nM", "b"], TASK_KINDS, "data.task")
    assert quoted == {"IC50, nM": "regression", "b": "binary"}
    with pytest.raises(InputError, match=r"data.task must be .* \(did you mean 'binary'\?\)"):
        parse_per_target("binaryy", names, TASK_KINDS, "data.task")
    with pytest.raises(InputError, match=r"data\.task has no target 'c'"):
        parse_per_target("c=binary", names, TASK_KINDS, "data.task")


@pytest.mark.parametrize(
    "values", [{"name": "a\x1b[2J"}, {"name": "a", "unit": "\x07"}, {"name": "a", "description": "\x7f"}]
)
def test_names_that_a_terminal_obeys_are_rejected(values):
    with pytest.raises(InputError, match="control character"):
        Task(**values)
    for name in ("logS\n(mol/L)\t", "non\x96toxic"):  # an en dash of Windows-1252
        assert Task(name).name == name
