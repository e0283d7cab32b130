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


def printed(interval: bool) -> list[str]:
    values = np.array([[np.nan] * 5, [2.0, 0.75, 0.2, 0.5, 0.3]], np.float32)
    low, high = np.full((2, 3), np.nan, np.float32), np.full((2, 3), np.nan, np.float32)
    low[1, 0], high[1, 0] = 1.5, 4.0
    sets = {"herg": np.array([[False] * 2, [False, True]]), "route": np.array([[False] * 3, [True, True, False]])}
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
        "target     prediction  interval or set  percentile  description",
        "half_life  2 h         1.5 to 4         50          in humans",
        "herg       yes: 0.75   yes              50",
        "route      skin: 0.50  oral or skin",
        "",
    ]


def test_without_intervals_nothing_is_made_up():
    assert "interval" not in printed(interval=False)[3] and printed(interval=False)[4].startswith("half_life  2 h ")


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0, 2.5, 9.0])
def test_percentiles_match_scipy(value):
    assert percentile(TASKS[0], value) == pytest.approx(percentileofscore(REFERENCE, value, "mean"))
