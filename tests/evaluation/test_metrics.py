import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from graphslice.data.dataset import LabelledDataset
from graphslice.data.labels import Labels
from graphslice.data.ogb import import_ogb_lsc
from graphslice.errors import InputError
from graphslice.evaluation.format_scores import describe_seeds
from graphslice.evaluation.metrics import (
    METRICS,
    check_metric,
    default_metric,
    mean_interval,
    score,
    scores,
    selection_score,
)
from graphslice.tasks import Task, regression_tasks

RANDOM = np.random.default_rng(0)
TRUE = RANDOM.normal(size=(50, 3))
PREDICTED = (TRUE + RANDOM.normal(size=(50, 3))).astype(np.float32)
ACTIVE = Task("active", "binary", ("no", "yes"))
KIND = Task("kind", "multiclass", ("a", "b", "c"))


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_scores_are_means_over_the_targets_where_they_are_defined():
    true, predicted = np.array([[1.0, np.nan], [2.0, 5.0], [4.0, np.nan]]), np.array([[2.0, 9], [2.0, 7.0], [1.0, 9]])
    assert score("mae", "t.csv", regression_tasks("ab"), true, predicted) == pytest.approx((4 / 3 + 2) / 2)
    result = scores("t.csv", regression_tasks("ab"), true, predicted)
    a, b = result["targets"]["a"], result["targets"]["b"]
    assert result["molecules"] == 3 and (a["molecules"], b["molecules"]) == (3, 1)
    assert b["mae"] == b["rmse"] == 2 and np.isnan(b["r2"]) and np.isnan(b["spearman"])  # of a single value
    assert result["r2"] == a["r2"] == pytest.approx(1 - 10 / (14 / 3))


def test_r2_of_constant_labels_is_undefined(number=0.1):
    """Rounding may make the mean differ from the labels."""
    result = scores("t.csv", regression_tasks("a"), np.full((3, 1), number), np.full((3, 1), number + 0.5))
    assert np.isnan(result["r2"]) and result["loss"] == pytest.approx(0.5)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_correlation_of_constant_predictions_is_zero_and_of_constant_labels_undefined(metric):
    rising, constant = np.arange(4.0)[:, None], np.ones((4, 1))
    tasks = regression_tasks("a")
    assert score(metric, "t.csv", tasks, rising, constant) == 0
    assert np.isnan(score(metric, "t.csv", tasks, constant, rising))


def test_loss_does_not_reward_predictions_far_beyond_bounds():
    numbers = np.array([1.0, 2, 3, 4, np.nan, np.nan])
    bounds = np.tile([-np.inf, np.inf], (6, 1, 1))
    bounds[4:, 0] = 5, np.inf
    dataset = LabelledDataset("t.csv", ["C"] * 6, Labels.of_molecules(numbers[:, None], bounds), regression_tasks("a"))
    found = []
    for beyond in (6.0, 600.0):
        predictions = np.append(numbers[:4] + 0.5, [beyond, beyond])[:, None]
        found.append(selection_score("loss", dataset, np.arange(6), predictions))
    assert found == pytest.approx([0.5 * 4 / 6 / numbers[:4].std()] * 2)


def test_regression_matches_scikit_learn_and_scipy():
    true = TRUE.copy()
    true[::7, 1] = np.nan
    for t, (name, result) in enumerate(scores("t.csv", regression_tasks("abc"), true, PREDICTED)["targets"].items()):
        known = ~np.isnan(true[:, t])
        assert name == "abc"[t] and result["molecules"] == known.sum()
        pair = true[known, t], PREDICTED[known, t]
        assert result["mae"] == pytest.approx(sk.mean_absolute_error(*pair))
        assert result["median_error"] == pytest.approx(sk.median_absolute_error(*pair))
        assert result["rmse"] == pytest.approx(sk.root_mean_squared_error(*pair))
        assert result["r2"] == pytest.approx(sk.r2_score(*pair))
        assert result["spearman"] == pytest.approx(stats.spearmanr(*pair).statistic)
        assert result["pearson"] == pytest.approx(stats.pearsonr(*pair).statistic)


def test_binary_matches_scikit_learn_and_torchmetrics():
    p = RANDOM.uniform(size=200).astype(np.float32)
    y = (RANDOM.uniform(size=200) < 0.3 + 0.4 * p).astype(float)
    y[::9] = np.nan
    known = ~np.isnan(y)
    result = scores("t.csv", [ACTIVE], y[:, None], p[:, None])
    true, probabilities, hard = y[known].astype(int), p[known].astype(float), (p[known] >= 0.5).astype(int)
    assert result["targets"]["active"]["counts"] == {"no": (true == 0).sum(), "yes": true.sum()}
    assert result["auroc"] == pytest.approx(sk.roc_auc_score(true, probabilities))
    assert result["auprc"] == pytest.approx(sk.average_precision_score(true, probabilities))
    assert result["accuracy"] == pytest.approx((true == hard).mean())
    assert result["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(true, hard))
    assert result["f1"] == pytest.approx(sk.f1_score(true, hard))
    assert result["mcc"] == pytest.approx(sk.matthews_corrcoef(true, hard))
    assert result["log_loss"] == result["loss"] == pytest.approx(sk.log_loss(true, probabilities))
    expected = binary_calibration_error(torch.from_numpy(probabilities), torch.from_numpy(true), n_bins=15)
    assert result["calibration_error"] == pytest.approx(float(expected), abs=1e-6)
    assert "mae" not in result


def test_certain_probabilities_are_in_the_last_of_fifteen_bins():
    """Guo et al. 2017: [14/15, 1]; torchmetrics has a bin for 1 alone."""
    p = np.repeat([1.0, 0.97], 100).astype(np.float32)[:, None]
    y = np.repeat([1.0, 0.0, 1.0], [90, 10, 100])[:, None]
    assert scores("t.csv", [ACTIVE], y, p)["calibration_error"] == pytest.approx(abs(190 / 200 - p.mean()), abs=1e-6)


def test_multiclass_matches_scikit_learn_and_torchmetrics():
    p = softmax(RANDOM.normal(size=(150, 3)))
    y = RANDOM.integers(0, 3, 150)
    result = scores("t.csv", [KIND], y[:, None].astype(float), p)
    assert result["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert result["accuracy"] == pytest.approx((p.argmax(1) == y).mean())
    assert result["f1"] == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
    assert result["mcc"] == pytest.approx(sk.matthews_corrcoef(y, p.argmax(1)))
    assert result["log_loss"] == pytest.approx(sk.log_loss(y, p))
    expected = multiclass_calibration_error(torch.from_numpy(p), torch.from_numpy(y), num_classes=3, n_bins=15)
    assert result["calibration_error"] == pytest.approx(float(expected), abs=1e-6)
    absent = score("auroc", "t.csv", [KIND], np.minimum(y, 1)[:, None].astype(float), p)  # no molecule is of class c
    pair = [sk.roc_auc_score(np.minimum(y, 1) == k, p[:, k]) for k in (0, 1)]
    assert absent == pytest.approx(np.mean(pair))


def test_mixed_task_types():
    """A metric is averaged over the targets that have it; columns of predictions are in the order of the targets."""
    p = softmax(RANDOM.normal(size=(50, 3)))
    y = np.stack([RANDOM.integers(0, 3, 50), TRUE[:, 0], RANDOM.integers(0, 2, 50)], axis=1).astype(float)
    predictions = np.concatenate([p, PREDICTED[:, :1], RANDOM.uniform(size=(50, 1))], axis=1)
    tasks = [KIND, Task("size"), ACTIVE]
    result = scores("t.csv", tasks, y, predictions)
    assert result["mae"] == pytest.approx(np.abs(TRUE[:, 0] - PREDICTED[:, 0]).mean())
    kind, active = scores("t.csv", [KIND], y[:, :1], p), scores("t.csv", [ACTIVE], y[:, 2:], predictions[:, 4:])
    assert result["auroc"] == pytest.approx(np.mean([kind["auroc"], active["auroc"]]))
    losses = [result["targets"][name]["loss"] for name in ("kind", "size", "active")]
    assert result["loss"] == pytest.approx(np.mean(losses))
    assert losses[1] == pytest.approx(result["mae"] / TRUE[:, 0].std())


@pytest.mark.parametrize(("name", "evaluator"), [("pcqm4m", "PCQM4MEvaluator"), ("pcqm4mv2", "PCQM4Mv2Evaluator")])
def test_mae_of_pcqm4m_is_computed_by_ogb(name, evaluator, monkeypatch):
    true = TRUE[:, :1].copy()
    true[3] = np.nan
    expected = np.abs(np.delete(true, 3) - np.delete(PREDICTED[:, 0], 3)).mean()
    calls = []
    original = getattr(import_ogb_lsc(), evaluator).eval
    monkeypatch.setattr(
        getattr(import_ogb_lsc(), evaluator), "eval", lambda self, d: calls.append(d) or original(self, d)
    )
    assert score("mae", name, regression_tasks("y"), true, PREDICTED[:, :1]) == pytest.approx(expected, rel=1e-12)
    assert len(calls) == 1 and calls[0]["y_true"].shape == (49,)
    assert score("mae", "t.csv", regression_tasks("y"), true, PREDICTED[:, :1]) == pytest.approx(expected, rel=1e-12)
    assert len(calls) == 1


@pytest.mark.parametrize("name", METRICS)
def test_score_is_nan_if_a_prediction_is_nan(name):
    tasks = [Task("size")] if "regression" in METRICS[name].kinds else [ACTIVE]
    y, predictions = np.array([[0.0], [1.0], [1.0]]), np.array([[0.2], [0.7], [np.nan]])
    assert np.isnan(score(name, "t.csv", tasks, y, predictions))
    assert np.isfinite(score(name, "t.csv", tasks, y[:2], predictions[:2]))


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [([Task("a")], "mae"), ([ACTIVE], "auroc"), ([KIND, ACTIVE], "auroc"), ([Task("a"), ACTIVE], "loss")],
)
def test_default_metric_depends_on_the_task_types(tasks, expected):
    assert default_metric(tasks, np.tile(np.arange(4.0)[:, None], len(tasks))) == expected
    check_metric(expected, tasks)
    scales = np.arange(4.0)[:, None] * [1, 2], np.arange(4.0)[:, None] * [1, 1e6]
    assert [default_metric(regression_tasks("ab"), labels) for labels in scales] == ["mae", "loss"]


def test_check_metric_rejects_unknown_and_inapplicable_metrics():
    with pytest.raises(InputError, match=r"trainer.metric .*not 'aurocc' \(did you mean 'auroc'\?\)"):
        check_metric("aurocc", [ACTIVE])
    with pytest.raises(InputError, match=r"trainer.metric auprc is for binary targets"):
        check_metric("auprc", [KIND])


SEEDS = np.array([0.3, 0.29, 0.33, 0.41, 0.25, 0.31])


def test_interval_over_seeds_matches_scipy():
    interval = stats.ttest_1samp(SEEDS, 0).confidence_interval()
    assert mean_interval(SEEDS) == pytest.approx((interval.low, interval.high))


def test_interval_over_folds_corrects_for_overlapping_training_sets():
    """Three repetitions of two folds: test and training sets have the same size."""
    half = stats.t.ppf(0.975, 5) * np.sqrt((1 / 6 + 1) * SEEDS.var(ddof=1))
    assert mean_interval(SEEDS, 2) == pytest.approx((SEEDS.mean() - half, SEEDS.mean() + half))


def test_best_of_several_base_models_has_a_wider_interval():
    """It is chosen by the scores that it is compared with."""
    gains, others = np.array([0.02, 0.05, 0.07, 0.03]), {"boosting": 0.9, "kernel": 0.9}
    for rivals, verdict in (({}, "), significant"), (others, "), not significant")):
        members = [{"network": 0.5, "forest": 0.5 - gain, **rivals} for gain in gains]
        line = describe_seeds("test", members, "mae")[1]
        low, high = stats.ttest_1samp(gains, 0).confidence_interval(1 - 0.05 / (1 + len(rivals)))
        assert f"by 0.0425 (95% confidence interval: {low:.3g} to {high:.3g}{verdict}" in line
