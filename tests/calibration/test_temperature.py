import numpy as np
import pytest
from scipy.special import expit, logit, softmax
from torchmetrics.functional.classification import binary_calibration_error

from graphslice import calibration
from graphslice.calibration import temperature_scaled


def fit_temperature(p: np.ndarray, y: np.ndarray) -> float:
    return calibration.fit_temperature(p, y.astype(int), np.arange(len(y)))


def test_temperature_divides_logits():
    p = np.array([[0.1], [0.5], [0.999], [0.0], [1.0]])
    np.testing.assert_allclose(temperature_scaled(p, 2.0)[:3], expit(logit(p[:3]) / 2))
    lower = temperature_scaled(p, 5.0)
    assert np.isfinite(temperature_scaled(p, 0.3)).all() and ((lower >= 0) & (lower <= 1)).all()
    logits = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(temperature_scaled(softmax(logits, axis=1), 0.5), softmax(logits / 0.5, axis=1))
    assert temperature_scaled(p, 1.0) is p


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0, 4.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_recovers_true_temperature(true, classes):
    """Classes are drawn from softmax(logits / true), while the probabilities are softmax(logits)."""
    random = np.random.default_rng(1)
    logits = random.normal(scale=2, size=(4000, classes))
    y = (random.random((4000, 1)) > softmax(logits / true, axis=1).cumsum(axis=1)).sum(axis=1).astype(float)
    p = softmax(logits, axis=1)
    p = p[:, 1:] if classes == 2 else p
    assert fit_temperature(p, y) == pytest.approx(true, rel=0.12)


def test_scaling_reduces_calibration_error_and_keeps_order():
    import torch

    random = np.random.default_rng(2)
    logits = random.normal(size=(2000, 1))
    y = (random.random((2000, 1)) < expit(logits)).astype(float)[:, 0]
    p = expit(3 * logits)  # overconfident
    better = temperature_scaled(p, fit_temperature(p, y))
    errors = [float(binary_calibration_error(torch.tensor(q[:, 0]), torch.tensor(y).long())) for q in (p, better)]
    assert errors[1] < 0.5 * errors[0]
    assert (np.argsort(p[:, 0]) == np.argsort(better[:, 0])).all()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("rows", [40, 100, 400])
def test_calibrated_probabilities_are_hardly_changed(classes, rows):
    found = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        p = softmax(random.normal(scale=3, size=(rows, classes)), axis=1)
        y = (random.random((rows, 1)) > p.cumsum(axis=1)).sum(axis=1)
        found.append(fit_temperature(p[:, 1:] if classes == 2 else p, y))
    assert np.mean(np.array(found) == 1) >= 0.7 and abs(np.log(found).mean()) < 0.1


def test_uninformative_data_give_temperature_one():
    p = np.array([[0.3]] * 30)
    assert fit_temperature(p, np.zeros(30)) == 1.0  # one class
    assert fit_temperature(p[:10], np.array([0.0, 1.0] * 5)) == 1.0  # few rows
    y = np.array([1.0] * 9 + [0.0] * 21)
    assert fit_temperature(p, y) == 1.0  # already calibrated


def test_few_correct_predictions_raise_confidence_little():
    """With 25 correct predictions per class, Platt's target is 26/27: the next one may be wrong."""
    y = np.array([1.0] * 25 + [0.0] * 25)
    p = np.where(y == 1, 0.9, 0.1)[:, None]
    found = temperature_scaled(p, fit_temperature(p, y))
    assert 0.9 < found[0, 0] <= 26 / 27 + 0.005
    kinds = np.arange(60) % 3
    shares = np.where(np.arange(3) == kinds[:, None], 0.8, 0.1)
    assert 0.8 < temperature_scaled(shares, fit_temperature(shares, kinds.astype(float)))[0, 0] <= 21 / 23 + 0.01
