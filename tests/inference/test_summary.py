"""Summaries of predictions, target by target."""

import numpy as np
import pytest
from scipy.stats import percentileofscore

from graphslice.errors import InputError
from graphslice.inference.predictions import PredictionInterval, Predictions
from graphslice.inference.summary import summarize
from graphslice.tasks import Task

REFERENCE = (1.0, 2.0, 2.0, 3.0)
TASKS = [
    Task("half_life", unit="h", description="in humans", reference=REFERENCE),
    Task("herg", "binary", ("no", "yes"), reference=(0.1, 0.9)),
    Task("route", "multiclass", ("oral", "skin", "vein"), reference=REFERENCE),
]


@pytest.fixture
def predictions() -> Predictions:
    values = np.array([[np.nan] * 5, [2.0, 0.75, 0.2, 0.5, 0.3]], np.float32)
    low, high = np.full((2, 3), np.nan, np.float32), np.full((2, 3), np.nan, np.float32)
    low[1, 0], high[1, 0] = 1.5, 4.0
    sets = {"herg": np.array([[False] * 2, [False, True]]), "route": np.array([[False] * 3, [True, True, False]])}
    return Predictions(values, ["not a molecule", None], TASKS, interval=PredictionInterval(90.0, low, high, sets))


def test_summaries_hold_units_intervals_and_descriptions(predictions):
    number, binary, several = summarize(predictions, 1)
    assert (number.prediction, number.unit, number.interval, number.classes) == (2.0, "h", (1.5, 4.0), None)
    assert (number.class_name, number.description) == ("", "in humans")
    assert (binary.prediction, binary.class_name, binary.classes, binary.interval) == (0.75, "yes", ("yes",), None)
    assert (several.prediction, several.class_name, several.classes) == (0.5, "skin", ("oral", "skin"))
    assert several.percentile is None


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0, 2.5, 9.0])
def test_percentiles_match_scipy(predictions, value):
    predictions.values[1, 0] = value
    assert summarize(predictions, 1)[0].percentile == pytest.approx(percentileofscore(REFERENCE, value, "mean"))


def test_without_intervals_nothing_is_made_up(predictions):
    predictions.interval = None
    assert all(each.interval is None and each.classes is None for each in summarize(predictions, 1))


def test_atoms_have_no_summary(predictions):
    predictions.ptr = np.array([0, 1, 2])
    with pytest.raises(InputError, match="molecule-level"):
        summarize(predictions, 1)
