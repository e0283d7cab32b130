from __future__ import annotations

import numpy as np
import pytest

from graphslice.tasks import Task, regression_tasks
from graphslice.training.data_summary import data_warnings, describe_tasks

RANDOM = np.random.default_rng(0)


def test_one_line_per_task_type():
    tasks = [Task("logs"), Task("cl", transform="log"), Task("active", "binary", ("no", "yes"))]
    tasks += [Task("kind", "multiclass", ("a", "b", "c")), Task("aktiv", "binary", ("ja", "nein"))]
    labels = np.array([[1.0, 2.0, 0.0, 2.0, 0.0], [2.0, 3.0, 1.0, np.nan, 0.0], [3.0, 4.0, 1.0, 0.0, 1.0]])
    assert describe_tasks(tasks, labels) == [
        "regression: logs, log of cl",
        "binary: active (1 no, 2 yes; scores are those of yes), aktiv (2 ja, 1 nein; scores are those of nein)",
        "multiclass: kind (1 a, 0 b, 1 c)",
    ]


def test_hundreds_of_targets_are_abbreviated():
    (line,) = describe_tasks(regression_tasks(f"t{t}" for t in range(300)), np.zeros((2, 300)))
    assert line == "regression: t0, t1, t2, t3, t4, t5 and 294 more"
    (line,) = data_warnings(regression_tasks(f"t{t}" for t in range(300)), np.zeros((2, 300)))
    assert "and 294 more has a single value" in line


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (RANDOM.normal(size=100), None),
        (-RANDOM.lognormal(0, 1.5, 100), None),
        (np.full(20, 3.5), "nothing to learn"),
        (2_459_000 + RANDOM.normal(size=100), "subtract a constant first"),
        (2_459_000 + 10 * RANDOM.normal(size=100), None),
        (RANDOM.integers(0, 3, 100).astype(float), "has 3 distinct values"),
        (np.array([np.nan, 1.0, 2.0]), None),
    ],
)
def test_warnings_about_suspicious_values(values, expected):
    found = data_warnings(regression_tasks(["y"]), values[:, None])
    assert found == [] if expected is None else (len(found) == 1 and expected in found[0])
