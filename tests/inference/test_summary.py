"""Summaries of predictions, target by target."""

import io

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import percentileofscore

from graphslice.calibration.domain import DOMAIN_BITS, ApplicabilityDomain
from graphslice.inference.predictions import (
    PredictionInterval,
    Predictions,
    SummaryTables,
    output_arrays,
    output_columns,
    percentile,
)
from graphslice.tasks import Task, describe_class

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
        "target     prediction          interval              percentile of drugs  description",
        "half_life  2.123 h             1.5 to 4              75                   in humans",
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


@pytest.mark.parametrize(
    ("value", "text"), [(0.0041, "0.0041"), (0.004, "0.0040"), (0.0051, "0.01"), (0.9962, "0.9962")]
)
def test_probabilities_that_would_round_to_0_or_1_have_four_digits(value, text):
    assert describe_class(np.array([value], np.float32), TASKS[1]).endswith(f"P(yes) {text}")


def test_similarity_names_the_molecules_that_are_compared():
    for count, molecules in {7: "7 training molecules", 10_000: "10,000 random training molecules"}.items():
        bits = np.zeros((count, DOMAIN_BITS), bool)
        domain, text = ApplicabilityDomain.from_fingerprints(bits, np.arange(count), 0), io.StringIO()
        row = {"smiles": "C", "in_domain": True, "similarity": 0.5, "error": None}
        SummaryTables([], row.keys() - {"smiles"}, text, domain.molecules).write(pa.Table.from_pylist([row]))
        title = f"C: inside the applicability domain, similarity 0.50 to the nearest of {molecules}"
        assert text.getvalue().splitlines()[0] == title


@pytest.mark.parametrize("value", [0.5, 1.0, 2.0, 2.5, 9.0])
def test_percentiles_match_scipy(value):
    assert percentile(TASKS[0], value) == pytest.approx(percentileofscore(REFERENCE, value, "mean"))
