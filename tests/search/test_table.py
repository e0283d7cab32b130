"""Records and tables of a comparison; paired differences over seeds, compared with scipy's paired t-test."""

import numpy as np
import pytest
from scipy import stats

from graphslice.evaluation.metrics import METRICS
from graphslice.search.compare import describe, differences, group_by_variant, table


def runs(values, first=0):
    return [{"seed": first + i, "valid": 0.0, "test": value} for i, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(2))
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


def test_variant_with_too_few_seeds_is_not_the_reference():
    variants = {"a": runs([0.1, 0.2]), "b": runs([1.0, 2.0, 3.0]), "c": runs([2.0, 3.1, 3.9])}
    (found,) = differences(variants, METRICS["mae"])
    assert (found["variant"], found["reference"]) == ("c", "b")


@pytest.mark.parametrize(("metric", "verdict"), [("mae", "worse"), ("auroc", "better")])
def test_verdict_follows_the_direction_of_the_metric(metric, verdict):
    (found,) = differences({"a": runs([0.5, 0.52, 0.49]), "b": runs([0.7, 0.72, 0.69])}, METRICS[metric])
    assert found["verdict"] == verdict and found["mean"] == pytest.approx(0.2)
    assert found["reference"] == "a"


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


def record(variant: str, seed: int, valid: float | None, test: float | None, **other) -> dict:
    """Return the record of a finished run as in ``comparison.json``."""
    return {
        "variant": variant,
        "seed": seed,
        "valid": valid,
        "test": test,
        "parameters": 1234,
        "steps": 1500,
        "molecules_per_second": 100.0,
        "peak_memory_bytes": 2**30,
        "curve": [[1.0, 5, (valid or 0.5) + 0.1], [2.0, 10, valid or 0.5]],
        **other,
    }


@pytest.fixture
def result() -> dict:
    """Two seeds of ``a`` and ``b``, and ``c``, which failed."""
    runs = [
        record("a", 0, 0.4, 0.31),
        record("a", 1, 0.4, 0.35),
        record("b", 0, 0.2, 0.5),
        record("b", 1, 0.3, 0.5),
        {"variant": "c", "seed": 0, "error": "no"},
    ]
    return {"budget": "10m", "runs": runs}


def test_best_on_the_validation_set_comes_first(result):
    assert list(group_by_variant(result)) == ["b", "a"]
    result["runs"] = [run | {"metric": "auroc"} for run in result["runs"]]
    assert list(group_by_variant(result)) == ["a", "b"]
    assert table(result).startswith("| mixer | test AUROC | validation AUROC |")


def test_row_has_mean_and_standard_deviation_over_seeds(result):
    b, a = table(result).splitlines()[2:4]
    assert b == "| `b` | 0.5000 ± 0.0000 | 0.2500 ± 0.0707 | 1,234 | 1,500 | 100 | 1.00 GiB | 2 |"
    assert a.startswith(f"| `a` | 0.3300 ± {np.std([0.31, 0.35], ddof=1):.4f} | 0.4000 ± 0.0000 |")


def test_scores_of_small_numbers_keep_their_digits():
    """Such as permeabilities in cm/s."""
    scores = {"a": [1e-6, 2e-6, 3e-6], "b": [2.5e-6, 3.6e-6, 4.4e-6]}
    text = table({"runs": [record(name, seed, 0.5, y) for name in scores for seed, y in enumerate(scores[name])]})
    assert "| `a` | 2e-06 ± 1e-06 |" in text and "| `b` | +1.5e-06 | +1.25e-06 to +1.75e-06 | 3 | worse |" in text


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({"a": [0.1, 0.2], "b": [1.0, 2.0]}, "between these variants can be claimed: that takes 3 seeds in common"),
        ({"a": [0.1, 0.2, 0.3], "b": [1.0, 2.0]}, "between these variants can be claimed: that takes 3 seeds"),
        ({"a": [1.0, 2.0, 3.0], "b": [1.1, 2.3, 2.9]}, "from `a` can be claimed: every interval contains 0"),
        ({"a": [1.0, 2.0, 3.0], "b": [1.5, 2.5, 3.51]}, None),
        ({"a": [1.0, 2.0]}, None),
    ],
)
def test_table_says_when_no_difference_can_be_claimed(scores, sentence):
    records = [record(name, seed, 0.5, value) for name in scores for seed, value in enumerate(scores[name])]
    text = table({"runs": records})
    assert text.count("No difference ") == (sentence is not None) and (sentence or "") in text


@pytest.mark.parametrize(("parameters", "percent"), [(1050, None), (1100, "10%")])
def test_table_says_when_the_variants_differ_in_size(parameters, percent):
    runs = [record("a", 0, 0.5, 0.5, parameters=1000), record("b", 0, 0.5, 0.5, parameters=parameters)]
    text = table({"runs": runs})
    assert ("parameters differ by up to" in text) == (percent is not None) and (percent or "") in text


def test_undefined_metrics_are_sorted_last(result):
    """Such as the AUROC of a split with a single class, which is null in the file."""
    result["runs"] += [record("d", 0, None, None), record("d", 1, 0.1, None), record("e", 0, 0.9, None)]
    assert list(group_by_variant(result)) == ["b", "a", "e", "d"]
    lines = table(result).splitlines()
    assert lines[4].startswith("| `e` |  | 0.9000 |") and lines[5].startswith("| `d` |  | 0.1000 |")
