from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mean_absolute_error as sk_mae
from sklearn.metrics import r2_score, root_mean_squared_error

from graphslice.data.ogb_lsc import import_ogb_lsc
from graphslice.evaluation import mean_absolute_error, scores

RANDOM = np.random.default_rng(0)
TRUE = RANDOM.normal(size=(50, 3))
PREDICTED = (TRUE + RANDOM.normal(size=(50, 3))).astype(np.float32)


def test_by_hand():
    true, predicted = np.array([[1.0, np.nan], [2.0, 5.0], [4.0, np.nan]]), np.array([[2.0, 9], [2.0, 7.0], [1.0, 9]])
    assert mean_absolute_error("t.csv", true, predicted) == pytest.approx((4 / 3 + 2) / 2)
    found = scores("t.csv", ["a", "b"], true, predicted)
    assert found["molecules"] == 3 and found["mae"] == pytest.approx((4 / 3 + 2) / 2)
    a, b = found["targets"]["a"], found["targets"]["b"]
    assert (a["molecules"], b["molecules"]) == (3, 1)
    assert a["mae"] == pytest.approx(4 / 3) and a["rmse"] == pytest.approx(np.sqrt(10 / 3))
    assert a["r2"] == pytest.approx(1 - 10 / (14 / 3))
    assert b["mae"] == b["rmse"] == 2 and np.isnan(b["r2"])  # one value has no spread


def test_against_scikit_learn():
    true = TRUE.copy()
    true[::7, 1] = np.nan
    for t, (name, found) in enumerate(scores("t.csv", list("abc"), true, PREDICTED)["targets"].items()):
        known = ~np.isnan(true[:, t])
        assert name == "abc"[t] and found["molecules"] == known.sum()
        pair = true[known, t], PREDICTED[known, t]
        assert found["mae"] == pytest.approx(sk_mae(*pair))
        assert found["rmse"] == pytest.approx(root_mean_squared_error(*pair))
        assert found["r2"] == pytest.approx(r2_score(*pair))


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
    assert mean_absolute_error(name, true, PREDICTED[:, :1]) == pytest.approx(by_hand, rel=1e-12)
    assert len(asked) == 1 and asked[0]["y_true"].shape == (49,)
    assert mean_absolute_error("t.csv", true, PREDICTED[:, :1]) == pytest.approx(by_hand, rel=1e-12)


def test_a_target_without_labels_is_left_out_of_the_mean():
    """Otherwise one column that validation has no value of would leave nothing to choose the best model by."""
    true = TRUE.copy()
    true[:, 1] = np.nan
    expected = np.abs(TRUE - PREDICTED)[:, [0, 2]].mean()
    assert mean_absolute_error("t.csv", true, PREDICTED) == pytest.approx(expected)
    assert np.isnan(scores("t.csv", list("abc"), true, PREDICTED)["targets"]["b"]["mae"])


def test_perfect_and_mean_predictions():
    assert scores("t.csv", ["a"], TRUE[:, :1], TRUE[:, :1])["targets"]["a"]["r2"] == 1
    mean = np.full((50, 1), TRUE[:, 0].mean())
    assert scores("t.csv", ["a"], TRUE[:, :1], mean)["targets"]["a"]["r2"] == pytest.approx(0)
