from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from graphslice.data.ogb_lsc import import_ogb_lsc
from graphslice.errors import InputError
from graphslice.evaluation import METRICS, score, scores
from graphslice.evaluation.metrics import check_metric, default_metric
from graphslice.tasks import Task, regression_tasks

RANDOM = np.random.default_rng(0)
TRUE = RANDOM.normal(size=(50, 3))
PREDICTED = (TRUE + RANDOM.normal(size=(50, 3))).astype(np.float32)
ACTIVE = Task("active", "binary", ("no", "yes"))
KIND = Task("kind", "multiclass", ("a", "b", "c"))


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_by_hand():
    true, predicted = np.array([[1.0, np.nan], [2.0, 5.0], [4.0, np.nan]]), np.array([[2.0, 9], [2.0, 7.0], [1.0, 9]])
    assert score("mae", "t.csv", regression_tasks("ab"), true, predicted) == pytest.approx((4 / 3 + 2) / 2)
    found = scores("t.csv", regression_tasks("ab"), true, predicted)
    assert found["molecules"] == 3 and found["mae"] == pytest.approx((4 / 3 + 2) / 2)
    a, b = found["targets"]["a"], found["targets"]["b"]
    assert (a["molecules"], b["molecules"]) == (3, 1)
    assert a["mae"] == pytest.approx(4 / 3) and a["rmse"] == pytest.approx(np.sqrt(10 / 3))
    assert a["r2"] == pytest.approx(1 - 10 / (14 / 3))
    assert b["mae"] == b["rmse"] == 2 and np.isnan(b["r2"])  # one value has no spread
    assert np.isnan(b["spearman"]) and found["r2"] == a["r2"]


@pytest.mark.parametrize("number", [0.1, 0.3, 1234.567])
def test_equal_labels_have_no_spread(number):
    """Whose mean may be another number by a rounding."""
    found = scores("t.csv", regression_tasks("a"), np.full((3, 1), number), np.full((3, 1), number + 0.5))
    assert np.isnan(found["r2"]) and found["loss"] == pytest.approx(0.5)


def test_numbers_against_scikit_learn_and_scipy():
    true = TRUE.copy()
    true[::7, 1] = np.nan
    for t, (name, found) in enumerate(scores("t.csv", regression_tasks("abc"), true, PREDICTED)["targets"].items()):
        known = ~np.isnan(true[:, t])
        assert name == "abc"[t] and found["molecules"] == known.sum()
        pair = true[known, t], PREDICTED[known, t]
        assert found["mae"] == pytest.approx(sk.mean_absolute_error(*pair))
        assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(*pair))
        assert found["r2"] == pytest.approx(sk.r2_score(*pair))
        assert found["spearman"] == pytest.approx(stats.spearmanr(*pair).statistic)
        assert found["pearson"] == pytest.approx(stats.pearsonr(*pair).statistic)


def test_two_classes_against_scikit_learn_and_torchmetrics():
    p = RANDOM.uniform(size=200).astype(np.float32)
    y = (RANDOM.uniform(size=200) < 0.3 + 0.4 * p).astype(float)
    y[::9] = np.nan
    known = ~np.isnan(y)
    found = scores("t.csv", [ACTIVE], y[:, None], p[:, None])
    true, given, hard = y[known].astype(int), p[known].astype(float), (p[known] >= 0.5).astype(int)
    assert found["targets"]["active"]["counts"] == {"no": (true == 0).sum(), "yes": true.sum()}
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(true, given))
    assert found["auprc"] == pytest.approx(sk.average_precision_score(true, given))
    assert found["accuracy"] == pytest.approx((true == hard).mean())
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(true, hard))
    assert found["f1"] == pytest.approx(sk.f1_score(true, hard))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(true, hard))
    assert found["log_loss"] == found["loss"] == pytest.approx(sk.log_loss(true, given))
    expected = binary_calibration_error(torch.from_numpy(given), torch.from_numpy(true), n_bins=15)
    assert found["calibration_error"] == pytest.approx(float(expected), abs=1e-6)
    assert "mae" not in found


def test_several_classes_against_scikit_learn_and_torchmetrics():
    p = softmax(RANDOM.normal(size=(150, 3)))
    y = RANDOM.integers(0, 3, 150)
    found = scores("t.csv", [KIND], y[:, None].astype(float), p)
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert found["accuracy"] == pytest.approx((p.argmax(1) == y).mean())
    assert found["f1"] == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(y, p.argmax(1)))
    assert found["log_loss"] == pytest.approx(sk.log_loss(y, p))
    expected = multiclass_calibration_error(torch.from_numpy(p), torch.from_numpy(y), num_classes=3, n_bins=15)
    assert found["calibration_error"] == pytest.approx(float(expected), abs=1e-6)
    absent = score("auroc", "t.csv", [KIND], np.minimum(y, 1)[:, None].astype(float), p)  # no molecule is of class c
    pair = [sk.roc_auc_score(np.minimum(y, 1) == k, p[:, k]) for k in (0, 1)]
    assert absent == pytest.approx(np.mean(pair))


def test_kinds_in_one_table():
    """A metric is the mean over the targets that have it; the answers of a target lie behind those before it."""
    p = softmax(RANDOM.normal(size=(50, 3)))
    y = np.stack([RANDOM.integers(0, 3, 50), TRUE[:, 0], RANDOM.integers(0, 2, 50)], axis=1).astype(float)
    answers = np.concatenate([p, PREDICTED[:, :1], RANDOM.uniform(size=(50, 1))], axis=1)
    tasks = [KIND, Task("size"), ACTIVE]
    found = scores("t.csv", tasks, y, answers)
    assert found["mae"] == pytest.approx(np.abs(TRUE[:, 0] - PREDICTED[:, 0]).mean())
    each = [scores("t.csv", [KIND], y[:, :1], p)["auroc"], scores("t.csv", [ACTIVE], y[:, 2:], answers[:, 4:])["auroc"]]
    assert found["auroc"] == pytest.approx(np.mean(each))
    losses = [found["targets"][name]["loss"] for name in ("kind", "size", "active")]
    assert found["loss"] == pytest.approx(np.mean(losses))
    assert losses[1] == pytest.approx(found["mae"] / TRUE[:, 0].std())


@pytest.mark.parametrize(("name", "evaluator"), [("pcqm4m", "PCQM4MEvaluator"), ("pcqm4mv2", "PCQM4Mv2Evaluator")])
def test_ogbs_evaluator_judges_pcqm4m(name, evaluator, monkeypatch):
    true = TRUE[:, :1].copy()
    true[3] = np.nan
    by_hand = np.abs(np.delete(true, 3) - np.delete(PREDICTED[:, 0], 3)).mean()
    asked = []
    original = getattr(import_ogb_lsc(), evaluator).eval
    monkeypatch.setattr(
        getattr(import_ogb_lsc(), evaluator), "eval", lambda self, d: asked.append(d) or original(self, d)
    )
    assert score("mae", name, regression_tasks("y"), true, PREDICTED[:, :1]) == pytest.approx(by_hand, rel=1e-12)
    assert len(asked) == 1 and asked[0]["y_true"].shape == (49,)
    assert score("mae", "t.csv", regression_tasks("y"), true, PREDICTED[:, :1]) == pytest.approx(by_hand, rel=1e-12)
    assert len(asked) == 1


def test_a_target_without_labels_is_left_out_of_the_mean():
    """Otherwise one column that validation has no value of would leave nothing to choose the best model by."""
    true = TRUE.copy()
    true[:, 1] = np.nan
    expected = np.abs(TRUE - PREDICTED)[:, [0, 2]].mean()
    assert score("mae", "t.csv", regression_tasks("abc"), true, PREDICTED) == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
def test_an_answer_that_is_no_number_leaves_nothing_to_score(name):
    tasks = [Task("size")] if "regression" in METRICS[name].kinds else [ACTIVE]
    y, answers = np.array([[0.0], [1.0], [1.0]]), np.array([[0.2], [0.7], [np.nan]])
    assert np.isnan(score(name, "t.csv", tasks, y, answers))
    assert np.isfinite(score(name, "t.csv", tasks, y[:2], answers[:2]))


@pytest.mark.parametrize("name", METRICS)
def test_a_better_answer_has_a_better_score(name):
    tasks = [Task("size")] if "regression" in METRICS[name].kinds else [ACTIVE]
    y = RANDOM.integers(0, 2, 100).astype(float)[:, None]
    good, bad = np.where(y == 1, 0.9, 0.1) + RANDOM.uniform(-0.05, 0.05, y.shape), RANDOM.uniform(size=y.shape)
    values = [score(name, "t.csv", tasks, y, answers) for answers in (good, bad)]
    assert METRICS[name].loss(values[0]) < METRICS[name].loss(values[1])
    assert (values[0] > values[1]) == METRICS[name].higher_is_better


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [([Task("a")], "mae"), ([ACTIVE], "auroc"), ([KIND, ACTIVE], "auroc"), ([Task("a"), ACTIVE], "loss")],
)
def test_the_metric_follows_the_targets(tasks, expected):
    assert default_metric(tasks) == expected
    check_metric(expected, tasks)


def test_metrics_of_no_use():
    with pytest.raises(InputError, match=r"unknown metric 'aurocc' \(did you mean 'auroc'\?\)"):
        check_metric("aurocc", [ACTIVE])
    with pytest.raises(InputError, match="--metric auprc is one of binary, and the targets are multiclass"):
        check_metric("auprc", [KIND])
