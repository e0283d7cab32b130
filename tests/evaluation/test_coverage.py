from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from graphslice.evaluation.coverage import add_coverage, coverage
from graphslice.evaluation.format_scores import describe_coverage
from graphslice.inference.predictions import PredictionInterval
from graphslice.tasks import Task

TASKS = [Task("y"), Task("kind", "multiclass", ("a", "b", "c"))]


def test_by_hand():
    low = np.array([[0, np.nan], [0, np.nan], [5, np.nan], [np.nan, np.nan]], np.float32)
    high = low + np.array([[1], [3], [2], [1]], np.float32)
    sets = {"kind": np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]], bool)}
    labels = np.array([[1.0, 0], [4, 1], [np.nan, 1], [np.nan, np.nan]])
    found = coverage(PredictionInterval(90, low, high, sets), labels, np.arange(4), TASKS)
    assert found["y"] == {"coverage": 0.5, "width": 2.0}
    assert found["kind"] == {"coverage": 2 / 3, "classes": 1.0}
    renamed = [replace(task, name=f"other {task.name}") for task in TASKS]  # as the table calls them that is judged on
    found = coverage(PredictionInterval(90, low, high, sets), labels, np.arange(4), renamed)
    assert found["other kind"] == {"coverage": 2 / 3, "classes": 1.0}
    none = coverage(PredictionInterval(90, low, high, sets), labels * np.nan, np.arange(4), TASKS)
    assert all(math.isnan(value) for one in none.values() for value in one.values())


def said(targets: dict, level: int, many: str = "molecules") -> list[str]:
    return describe_coverage("test", {"targets": targets, many: 7}, level)


def test_what_is_said():
    number = {"kind": "regression", "coverage_90": 0.912, "width_90": 1.23456}
    assert said({"y": number}, 90) == ["test: 91% of the labels lie in the intervals of 90%, on average 1.23 wide"]
    endless = {"kind": "regression", "coverage_90": None}
    assert said({"y": number, "z": endless}, 90) == ["test: 91% of the labels lie in the intervals of 90%"]
    assert "no end" in said({"z": endless}, 90)[0]
    kind = {
        "kind": "multiclass",
        "coverage_80": 0.95,
        "classes_80": 1.5,
        "temperature": 1.0,
        "counts": {"a": 1, "b": 2},
    }
    assert "hold all classes" in said({"kind": kind | {"classes_80": 2.0}}, 80)[0]
    assert said({"kind": kind}, 80) == ["test: 95% of the labels are in the sets of 80%, of 1.50 classes on average"]
    kind |= {"temperature": 2.0, "calibration_error": 0.05, "calibration_error_before": 0.1}
    assert said({"kind": kind}, 80)[0].endswith("; temperature 2.00: calibration error 0.100 before, 0.050 after")
    assert said({"y": {"kind": "regression", "mae": 1.0}}, 90) == []


def test_what_is_kept_is_finite():
    found = {"targets": {"y": {"mae": 1.0}}}
    add_coverage(found, {"y": {"coverage": 1.0, "width": math.inf}})
    assert found == {"targets": {"y": {"mae": 1.0, "coverage_90": None}}}, "what has no end holds everything"


def test_parts_of_a_table():
    one = PredictionInterval(90, np.zeros((2, 1)), np.ones((2, 1)), {"k": np.ones((2, 3), bool)})
    joined = PredictionInterval.concatenate([one, one])
    assert joined.low.shape == (4, 1) and joined.sets["k"].shape == (4, 3) and joined.level == 90


def test_of_atoms_by_hand():
    """The mean over molecules: the first has one atom of two with a label inside, the second three of three, the third
    no atom, the fourth no label."""
    labels = np.array([[0.5], [2.0], [np.nan], [0.0], [1.0], [0.1], [np.nan]])
    interval = PredictionInterval(90, np.zeros((7, 1)), np.array([[1.0], [1], [9], [2], [2], [2], [9]]), {})
    found = coverage(interval, labels, np.array([0, 0, 0, 1, 1, 1, 3]), TASKS[:1])
    assert found["y"] == {"coverage": 0.75, "width": 1.5}
    number = {"kind": "regression", "coverage_90": 0.912, "width_90": 1.23456}
    (line,) = said({"y": number}, 90, "bonds")
    assert line == "test: 91% of the labels of a molecule's bonds lie in the intervals of 90%, on average 1.23 wide"
