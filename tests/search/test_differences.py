"""Paired differences over seeds, compared with scipy's paired t-test."""

import numpy as np
import pytest
from scipy import stats

from graphslice.evaluation.metrics import METRICS
from graphslice.search.compare import describe, differences


def runs(values, first=0):
    return [{"seed": first + i, "valid": 0.0, "test": value} for i, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(5))
def test_interval_matches_the_paired_t_test(seed):
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(6)  # the effect of a seed on all variants cancels
    best, other = common + 0.1 * generator.standard_normal(6), common + 0.1 * generator.standard_normal(6) + 0.05
    (found,) = differences({"a": runs(best), "b": runs(other)}, METRICS["mae"])
    expected = stats.ttest_rel(other, best)
    low, high = expected.confidence_interval(0.95)
    np.testing.assert_allclose([found["mean"], found["low"], found["high"]], [np.mean(other - best), low, high])
    assert (found["verdict"] == "no significant difference") == (expected.pvalue > 0.05)


def test_intervals_are_simultaneous():
    """Bonferroni correction for the six pairs of four variants, since the reference was chosen by its results."""
    values = np.random.default_rng(0).standard_normal((4, 5)) * 0.1 + np.arange(4)[:, None] * 0.2
    found = differences(dict(zip("abcd", map(runs, values), strict=True)), METRICS["mae"])
    assert [one["variant"] for one in found] == ["b", "c", "d"]
    for one, row in zip(found, values[1:], strict=True):
        low, high = stats.ttest_rel(row, values[0]).confidence_interval(1 - 0.05 / 6)
        np.testing.assert_allclose([one["low"], one["high"]], [low, high])
        assert (one["verdict"] == "no significant difference") == (low <= 0 <= high)
    assert "simultaneous 95% intervals of all pairs" in describe(found, "MAE")[0]


def test_equal_variants_rarely_differ_significantly():
    """Of ten equal variants the best on a correlated validation score is the reference."""
    generator = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        valid = generator.standard_normal((10, 3))
        test = 0.9 * valid + 0.44 * generator.standard_normal((10, 3))
        order = valid.mean(axis=1).argsort().tolist()
        found = differences({str(i): runs(test[i]) for i in order}, METRICS["mae"])
        wrong += any(one["verdict"] != "no significant difference" for one in found)
    assert wrong <= 10, "more than 5%; without a correction for multiple comparisons it would be about half"


def test_variant_with_too_few_seeds_is_not_the_reference():
    variants = {"a": runs([0.1, 0.2]), "b": runs([1.0, 2.0, 3.0]), "c": runs([2.0, 3.1, 3.9])}
    (found,) = differences(variants, METRICS["mae"])
    assert (found["variant"], found["beside"]) == ("c", "b")  # codespell:ignore beside


@pytest.mark.parametrize(("metric", "verdict"), [("mae", "worse"), ("auroc", "better")])
def test_verdict_follows_the_direction_of_the_metric(metric, verdict):
    (found,) = differences({"a": runs([0.5, 0.52, 0.49]), "b": runs([0.7, 0.72, 0.69])}, METRICS[metric])
    assert found["verdict"] == verdict and found["mean"] == pytest.approx(0.2)
    assert found["beside"] == "a"  # codespell:ignore beside


def test_only_shared_seeds_count_and_two_are_too_few():
    variants = {"a": runs([1.0, 2.0, 3.0, 4.0]), "b": runs([1.5, 2.5, 3.5, 4.5], first=1), "c": runs([1.0, 1.0])}
    (found,) = differences(variants, METRICS["mae"])
    assert found["variant"] == "b" and found["seeds"] == 3 and found["mean"] == pytest.approx(-0.5)
    assert found["verdict"] == "better"
    untested = [{"seed": seed, "valid": 0.0} for seed in range(4)]
    assert differences({"a": runs([1.0] * 4), "b": untested}, METRICS["mae"]) == []


def test_validation_metric_is_compared_without_test_labels():
    """PCQM4M has none."""
    tested = {"a": runs([1.0, 2.0, 3.0]), "b": runs([1.5, 2.4, 3.6])}
    validated = {name: [{"seed": run["seed"], "valid": run["test"]} for run in found] for name, found in tested.items()}
    assert differences(validated, METRICS["mae"]) == differences(tested, METRICS["mae"]) != []


def test_differences_are_formatted_as_a_table():
    (line,) = describe(differences({"a": runs([1, 2, 3]), "b": runs([1.1, 2.3, 2.9])}, METRICS["mae"]), "MAE")[4:]
    assert line.startswith("| `b` | +0.1000 | ") and line.endswith(" | 3 | no significant difference |")
    assert describe([], "MAE") == []
