"""Out-of-fold predictions: means, difficulty estimates and standard deviations against manually computed values."""

import numpy as np
import pytest

from graphslice.calibration import ApplicabilityDomain, Calibration, NonconformityScores
from graphslice.calibration.calibration import TargetCalibration
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.evaluation.evaluate import predict_held_out, rows_in_split
from graphslice.tasks import Task

TASKS = [Task("toxic", "binary", classes=("no", "yes"))]


class ConstantPredictor:
    """Predicts a constant for every molecule; with ``parts`` the difficulty estimate of a molecule is its row."""

    calibration, tasks, columns, level = None, TASKS, ["toxic"], "molecule"

    def __init__(self, number, parts=False):
        self.number, self.parts = number, parts

    def predict_uncalibrated(self, store, rows, domain=None):
        difficulty = {"parts": rows[:, None].astype(np.float32)} if self.parts else {}
        return np.full((len(rows), 1), self.number, np.float32), difficulty


class AtomCountStore:
    def atom_bond_counts(self, level, rows):
        return np.ones(len(rows), int) if level == "molecule" else rows


MODELS = [ConstantPredictor(0.2, parts=True), ConstantPredictor(0.6), ConstantPredictor(0.9)]
SPLITS = [{"test": np.array([5, 1])}, {"test": np.array([1, 3])}, {"train": np.array([1])}]


def test_every_model_predicts_its_own_split():
    rows = rows_in_split(SPLITS, "test")
    assert rows.tolist() == [1, 3, 5]
    mean, difficulty = predict_held_out(MODELS, SPLITS, "test", AtomCountStore(), rows)
    np.testing.assert_allclose(mean[:, 0], [0.4, 0.6, 0.2], rtol=1e-6)
    np.testing.assert_allclose(difficulty["parts"][:, 0], [0.5, 0, 5])  # 0 for a model with a single component


@pytest.mark.parametrize("temperature", [1, 2])
def test_mean_is_scaled_by_temperature(temperature):
    target = TargetCalibration(
        (NonconformityScores.from_rows(np.zeros(1), np.zeros(1)),) * 2, {"constant": 1.0}, temperature
    )
    domain = ApplicabilityDomain.from_fingerprints(np.zeros((1, DOMAIN_BITS), bool), np.zeros(1, np.int64), 0)
    mean, _ = predict_held_out(MODELS, SPLITS, "test", AtomCountStore(), np.array([1, 3, 5]))
    predicted = Calibration((target,), domain).probabilities(mean, TASKS)
    logits = np.log(np.array([0.4, 0.6, 0.2]) / np.array([0.6, 0.4, 0.8]))
    np.testing.assert_allclose(predicted[:, 0], 1 / (1 + np.exp(-logits / temperature)), rtol=1e-5)


class ConstantAtomPredictor(ConstantPredictor):
    level = "atom"

    def predict_uncalibrated(self, store, rows, domain=None):
        return super().predict_uncalibrated(store, np.repeat(rows, store.atom_bond_counts(self.level, rows)))


def test_every_model_predicts_the_atoms_of_its_own_split():
    splits = [{"test": np.array([2, 0])}, {"test": np.array([1, 2])}]  # molecule 0 has no atoms
    models = [ConstantAtomPredictor(0.2, parts=True), ConstantAtomPredictor(0.6)]
    mean, difficulty = predict_held_out(models, splits, "test", AtomCountStore(), np.arange(3))
    np.testing.assert_allclose(mean[:, 0], [0.6, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(difficulty["parts"][:, 0], [0, 1, 1])
