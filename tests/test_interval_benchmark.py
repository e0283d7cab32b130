"""Benchmark of prediction intervals: random forest with jackknife, bins and tables."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from benchmarks import interval_report, intervals


def test_jackknife_intervals_have_the_nominal_coverage(monkeypatch):
    monkeypatch.setattr(intervals, "_TREES", 60)
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 4))
    y = x[:, 0] + 0.3 * random.normal(size=400)
    found = intervals._jackknife(x[:200], y[:200], x[200:], y[200:], seed=0)
    assert found["90"]["coverage"] == pytest.approx(0.9, abs=0.06)
    assert found["80"]["width"] < found["90"]["width"] < found["95"]["width"] < np.ptp(y)


def test_bins_match_manual_computation():
    similarity, error = np.array([0.1, 0.35, 0.3, 1.0, 0.84]), np.array([1.0, 2, 4, 8, 16])
    assert intervals._binned(similarity, error) == [[1, 1], [2, 6], [0, 0], [0, 0], [0, 0], [1, 16], [1, 8]]
    assert intervals._by_domain(similarity > 0.5, error) == [[2, 24], [3, 7]]


def line(task: str, seed: int, **more) -> dict:
    covered = {str(level): {"coverage": level / 100, "width": 2.0, "classes": 1.5} for level in intervals.LEVELS}
    bins = [[1, 1.0], [3, 1.0], *[[0, 0.0]] * 5]
    shared = {"task": task, "split": "random", "seed": seed, "intervals": covered, "by_similarity": bins}
    return shared | {"in_domain": [[3, 1.0], [1, 1.0]], "version": "v", "machine": "m", **more}


def test_tables_have_the_expected_rows():
    numbers = [line("caco2_wang", seed, jackknife=line("", 0)["intervals"]) for seed in (0, 1)]
    more = {"temperature": 1.5, "calibration_error": [0.2, 0.1], "log_loss": [0.5, 0.4]}
    text = "".join(interval_report.interval_tables([*numbers, line("herg", 0, **more)]).values())
    assert "| caco2_wang | random | 2 | 80 ± 0%, 80 ± 0% |" in text and "2.000 ± 0.000, 2.000 ± 0.000 |" in text
    assert "| herg | random | 1.50 | 0.200, 0.100 | 0.500, 0.400 |" in text
    assert "| 0 to 0.3 | 2 | 2.00 | 1 | 2.00 |" in text and "| outside | 2 | 2.00 | 1 | 2.00 |" in text
    assert "| 0.4 to 0.5 | 0 |  | 0 |  |" in text
