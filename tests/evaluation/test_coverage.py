import itertools
import math

import numpy as np
import pytest
from scipy.stats import gmean

from graphslice.calibration import Calibration, NonconformityScores, TargetCalibration
from graphslice.evaluation.format_scores import describe_coverage, describe_covered, describe_scores
from graphslice.evaluation.metrics import add_coverage, coverage, scores
from graphslice.inference.predictions import PredictionInterval
from graphslice.tasks import Task

TASKS = [Task("y"), Task("kind", "multiclass", ("a", "b", "c"))]


def calibrated_on(molecules: int) -> Calibration:
    """Return a calibration of a number on molecules of two measurements each."""
    scores = NonconformityScores.from_rows(np.arange(2.0 * molecules), np.arange(2 * molecules) // 2)
    return Calibration((TargetCalibration((scores,), {}),), None)


def test_coverage_matches_manual_computation():
    low = np.array([[0, np.nan], [0, np.nan], [5, np.nan], [np.nan, np.nan]], np.float32)
    high = low + np.array([[1], [3], [2], [1]], np.float32)
    sets = {"kind": np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]], bool)}
    labels = np.array([[1.0, 0], [4, 1], [np.nan, 1], [np.nan, np.nan]])
    result = coverage(PredictionInterval(90, low, high, sets), labels, np.arange(4), TASKS)
    assert result["y"] == {"coverage": 0.5, "width": 2.0}
    assert result["kind"] == {"coverage": 2 / 3, "classes": 1.0}
    none = coverage(PredictionInterval(90, low, high, sets), labels * np.nan, np.arange(4), TASKS)
    assert all(math.isnan(value) for one in none.values() for value in one.values())


def test_infinite_widths_are_not_stored():
    result = {"targets": {"y": {"mae": 1.0}}}
    add_coverage(result, {"y": {"coverage": 1.0, "width": math.inf}}, calibrated_on(2))
    expected = {"mae": 1.0, "coverage_90": None, "calibration_molecules": 2}
    assert result == {"targets": {"y": expected}}, "infinite intervals cover every label"


def test_coverage_of_atoms_is_averaged_over_molecules():
    """Molecule 0 has one of two labelled atoms covered, 1 three of three; 2 has no atoms, 3 no labels."""
    labels = np.array([[0.5], [2.0], [np.nan], [0.0], [1.0], [0.1], [np.nan]])
    interval = PredictionInterval(90, np.zeros((7, 1)), np.array([[1.0], [1], [9], [2], [2], [2], [9]]), {})
    result = coverage(interval, labels, np.array([0, 0, 0, 1, 1, 1, 3]), TASKS[:1])
    assert result["y"] == {"coverage": 0.75, "width": 1.5}


def test_coverage_stands_with_what_chance_allows():
    """The least and the largest count whose tail is not below 2.5%, of all orders of calibration and test errors."""
    target = {"molecules": 23, "calibration_molecules": 9999, "coverage_90": 16 / 23}
    assert describe_covered(target) == "16 of 23 (70%; by chance 18 to 23)"
    for count, calibrated in itertools.product((1, 6, 260), (9, 49, 199)):
        largest = (calibrated + 1) * 9 // 10  # the interval reaches to the calibration error of this rank
        ways = [
            math.comb(largest - 1 + k, k) * math.comb(calibrated - largest + count - k, count - k)
            for k in range(count + 1)
        ]
        below, above = np.cumsum(ways), np.cumsum(ways[::-1])[::-1]
        counts = [k for k in range(count + 1) if 40 * min(below[k], above[k]) >= math.comb(calibrated + count, count)]
        expected = f"by chance {counts[0]:,} to {counts[-1]:,})"
        target = {"molecules": count, "calibration_molecules": calibrated, "coverage_90": 1.0}
        assert describe_covered(target).endswith(expected)
    assert describe_covered({"molecules": 23, "atoms": 90, "coverage_90": 0.875}) == "88%"


def test_targets_on_a_logarithm_are_scored_in_factors():
    """The typical error is the median ratio of label and prediction, the width that of the bounds."""
    task = Task("papp", transform="log")
    y, predicted = np.array([1.0, 10, 100, 1000, np.nan]), np.array([3.0, 5, 100, 250, 7], np.float32)
    result = scores("t.csv", [task], y[:, None], predicted[:, None])
    ratios = [max(a / b, b / a) for a, b in zip(y[:4].tolist(), predicted.tolist(), strict=False)]
    assert result["targets"]["papp"]["median_factor"] == pytest.approx(gmean(sorted(ratios)[1:3]))
    interval = PredictionInterval(90, predicted[:, None] / 2, predicted[:, None] * [[2], [4], [2], [4], [9]], {})
    add_coverage(result, coverage(interval, y[:, None], np.arange(5), [task]), calibrated_on(40))
    assert result["targets"]["papp"]["factor_90"] == pytest.approx(gmean([4, 8, 4, 8]))
    assert "Spearman 1.0000, typical error a factor of 2.45 on 5 molecules" in describe_scores("test", result)
    assert describe_coverage("test", result)[0].endswith("mean width about a factor of 5.7")
    raw = scores("t.csv", [Task("papp")], y[:, None], predicted[:, None])
    assert "factor" not in describe_scores("test", raw)


def test_coverage_below_chance_has_advice():
    """By chance 94 to 107 of 112 labels are covered, 91 to 108 by intervals of 99 calibration molecules."""
    target = {"kind": "regression", "molecules": 112, "width_90": 1.0}
    for covered, calibrated, lines in ((93, 9999, 2), (94, 9999, 1), (90, 99, 2), (91, 99, 1)):
        target["calibration_molecules"] = calibrated
        result = {"molecules": 112, "targets": {"y": target | {"coverage_90": covered / 112}}}
        assert len(describe_coverage("test", result)) == lines
    result["targets"]["z"] = target | {"coverage_90": 80 / 112}
    assert "less than chance allows for 'z': " in describe_coverage("test", result)[1]
