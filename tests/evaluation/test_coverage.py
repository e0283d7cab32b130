from __future__ import annotations

import math

import numpy as np

from graphslice.evaluation.coverage import add_coverage, coverage
from graphslice.evaluation.report import describe_doubt
from graphslice.inference.predictions import Interval
from graphslice.tasks import Task

TASKS = [Task("y"), Task("kind", "multiclass", ("a", "b", "c"))]


def test_by_hand():
    low = np.array([[0, np.nan], [0, np.nan], [5, np.nan], [np.nan, np.nan]], np.float32)
    high = low + np.array([[1], [3], [2], [1]], np.float32)
    sets = {"kind": np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]], bool)}
    labels = np.array([[1.0, 0], [4, 1], [np.nan, 1], [7, 2]])
    answered = np.array([True, True, True, False])
    found = coverage(Interval(90, low, high, sets), labels, TASKS, answered)
    assert found["y"] == {"coverage": 0.5, "width": 2.0}
    assert found["kind"] == {"coverage": 2 / 3, "classes": 1.0}
    none = coverage(Interval(90, low, high, sets), labels, TASKS, ~answered & False)
    assert all(math.isnan(value) for one in none.values() for value in one.values())


def test_what_is_said():
    number = {"kind": "regression", "coverage_90": 0.912, "width_90": 1.23456}
    assert describe_doubt("test", {"y": number}, 90) == [
        "test: 91% of the labels lie in the intervals of 90%, on average 1.23 wide"
    ]
    endless = {"kind": "regression", "coverage_90": 1.0}
    assert describe_doubt("test", {"y": number, "z": endless}, 90) == [
        "test: 91% of the labels lie in the intervals of 90%"
    ]
    assert "no end" in describe_doubt("test", {"z": endless}, 90)[0]
    kind = {
        "kind": "multiclass",
        "coverage_80": 0.95,
        "classes_80": 1.5,
        "temperature": 1.0,
        "counts": {"a": 1, "b": 2},
    }
    assert "hold all classes" in describe_doubt("test", {"kind": kind | {"classes_80": 2.0}}, 80)[0]
    assert describe_doubt("test", {"kind": kind}, 80) == [
        "test: 95% of the labels are in the sets of 80%, of 1.50 classes on average"
    ]
    kind |= {"temperature": 2.0, "calibration_error": 0.05, "calibration_error_before": 0.1}
    assert describe_doubt("test", {"kind": kind}, 80)[0].endswith(
        "; temperature 2.00: calibration error 0.100 before, 0.050 after"
    )
    assert describe_doubt("test", {"y": {"kind": "regression", "mae": 1.0}}, 90) == []


def test_what_is_kept_is_finite():
    found = {"targets": {"y": {"mae": 1.0}}}
    add_coverage(found, {"y": {"coverage": 1.0, "width": math.inf}})
    assert found == {"targets": {"y": {"mae": 1.0, "coverage_90": 1.0}}}


def test_parts_of_a_table():
    one = Interval(90, np.zeros((2, 1)), np.ones((2, 1)), {"k": np.ones((2, 3), bool)})
    joined = Interval.joined([one, one])
    assert joined.low.shape == (4, 1) and joined.sets["k"].shape == (4, 3) and joined.level == 90
