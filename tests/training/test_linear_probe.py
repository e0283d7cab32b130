"""Linear probing before fine-tuning."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from graphslice.inference import load
from graphslice.system.machine import DEMO_CSV
from graphslice.training.fine_tuning import ridge


def test_ridge_matches_scikit_learn():
    """With the best penalty on the validation rows, and the explained variance."""
    random = np.random.default_rng(0)
    x, truth = random.normal(size=(60, 9)) * np.arange(1, 10), random.normal(size=9)
    y = x @ truth + random.normal(size=60) * 20 + 5
    weight, bias, explained = ridge(x[:40], y[:40], x[40:], y[40:])
    total = np.square(x[:40] - x[:40].mean(axis=0)).sum()
    others = [Ridge(penalty * total).fit(x[:40], y[:40]) for penalty in np.logspace(-4, 1, 11)]
    best = max(others, key=lambda fit: fit.score(x[40:], y[40:]))
    np.testing.assert_allclose(weight, best.coef_, rtol=1e-8)
    assert bias == pytest.approx(best.intercept_) and explained == pytest.approx(best.score(x[40:], y[40:]))


def test_ridge_on_constant_features_predicts_the_mean():
    x = np.zeros((5, 3))
    weight, bias, explained = ridge(x, np.arange(5.0), x, np.arange(5.0))
    assert not weight.any() and bias == 2 and explained == pytest.approx(0)


@pytest.fixture
def two_targets(tmp_path):
    """A table with the gap, on which ``small`` was pretrained, whether it is wide, and random numbers."""
    rows = pd.read_csv(DEMO_CSV).head(300)
    wide = np.where(rows["gap_ev"] > rows["gap_ev"].median(), "yes", "no")
    table = rows.assign(wide=wide, chance=np.random.default_rng(0).normal(size=len(rows)))
    table.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_only_explained_targets_are_fitted(cli, two_targets, tmp_path):
    """After a single step the predictions are those of the fit; the random target was not fitted."""
    flags = ["--baselines", "off", "--trainer.max_steps", "1", "--optimizer.peak_lr", "1e-9", "--init-from", "small"]
    table = ["train", "--dataset", two_targets, "--targets", "gap_ev,wide,chance"]
    code, _, err = cli(*table, "-o", tmp_path / "run", *flags)
    assert code == 0 and "a linear probe initialises the output layer" in err
    rows = pd.read_csv(two_targets)
    rows = rows[rows["split"] == "test"]
    found = load(tmp_path / "run", "cpu").predict(rows["smiles"].tolist(), details=True)
    values = dict(zip(found.columns, found.values.T, strict=True))
    assert np.corrcoef(values["gap_ev"], rows["gap_ev"])[0, 1] > 0.85
    assert ((values["wide_prob_yes"] > 0.5) == (rows["wide"] == "yes")).mean() > 0.8
    assert np.ptp(values["chance"]) < 0.5


def test_a_head_that_is_new_for_another_loss_is_fitted_too(cli, two_targets, tmp_path):
    """With the targets of the checkpoint, and standard deviations as further outputs."""
    flags = ["--baselines", "off", "--trainer.max_steps", "1", "--optimizer.peak_lr", "1e-9"]
    table = ["train", "--dataset", two_targets, "--targets", "gap_ev", "--transform", "none"]
    assert cli(*table, "-o", tmp_path / "mae", *flags, "--init-from", "small")[0] == 0
    again = ["--init-from", tmp_path / "mae", "--trainer.loss", "gaussian"]
    code, _, err = cli(*table, "-o", tmp_path / "gaussian", *flags, *again)
    assert code == 0 and "a linear probe initialises the output layer" in err
