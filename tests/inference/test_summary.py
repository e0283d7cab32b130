"""Summaries of predictions, target by target."""

import io

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import percentileofscore

from graphslice.inference.predictions import (
    PredictionInterval,
    Predictions,
    SummaryTables,
    output_arrays,
    output_columns,
    percentile,
)
from graphslice.tasks import Task

REFERENCE = (1.0, 2.0, 2.0, 3.0)
TASKS = [
    Task("half_life", unit="h", description="in humans", reference=REFERENCE),
    Task("herg", "binary", ("no", "yes"), reference=(0.1, 0.9)),
    Task("route", "multiclass", ("oral", "skin", "vein"), reference=REFERENCE),
]


def printed(interval: bool, high_bound: float = 4.0, herg: str = "no") -> list[str]:
    values = np.array([[np.nan] * 5, [2.123, 0.35, 0.2, 0.5, 0.3]], np.float32)
    low, high = np.full((2, 3), np.nan, np.float32), np.full((2, 3), np.nan, np.float32)
    low[1, 0], high[1, 0] = 1.5, high_bound
    sets = {
        "herg": np.array([[False] * 2, [herg == "no", herg == "yes"]]),
        "route": np.array([[False] * 3, [True, True, False]]),
    }
    bounds = PredictionInterval(90.0, low, high, sets) if interval else None
    arrays = output_arrays(Predictions(values, ["not a molecule", None], TASKS, interval=bounds))
    text = io.StringIO()
    added = output_columns(TASKS, interval=90.0 if interval else None)
    SummaryTables(TASKS, added, text).write(pa.table({"id": ["a", "b"], "smiles": ["C[", "CC"], **arrays}))
    return text.getvalue().splitlines()


def test_summaries_hold_units_intervals_percentiles_and_descriptions():
    assert printed(interval=True) == [
        "a, C[: not a molecule",
        "",
        "b, CC",
        "target     prediction          interval              percentile  description",
        "half_life  2.123 h             1.5 to 4              75          in humans",
        "herg       no, P(yes) 0.35     sure                  50",
        "route      skin, P(skin) 0.50  unsure: oral or skin",
        "",
    ]


def test_a_prediction_set_that_is_not_the_predicted_class_is_unsure():
    assert printed(interval=True, herg="yes")[5].startswith("herg       no, P(yes) 0.35     unsure ")


def test_without_intervals_nothing_is_made_up():
    assert "interval" not in printed(interval=False)[3] and printed(interval=False)[4].startswith("half_life  2.123 h ")


def test_a_number_whose_interval_spans_a_factor_of_ten_has_two_digits():
    assert printed(interval=True, high_bound=15.004)[4].startswith("half_life  2.1 h               1.5 to 15 ")
    assert printed(interval=True, high_bound=14.96)[4].startswith("half_life  2.123 h             1.5 to 14.96 ")


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0, 2.5, 9.0])
def test_percentiles_match_scipy(value):
    assert percentile(TASKS[0], value) == pytest.approx(percentileofscore(REFERENCE, value, "mean"))
