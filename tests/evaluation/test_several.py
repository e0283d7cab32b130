"""Several models, each asked for its own split: means, difficulties and spreads against those counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from graphslice.calibration import Calibration, Domain, Scores
from graphslice.calibration.calibration import TargetCalibration
from graphslice.calibration.domain import BITS
from graphslice.evaluation.several import ask_each, rows_of
from graphslice.report.answers import answer
from graphslice.tasks import Task

TASKS = [Task("toxic", "binary", classes=("no", "yes"))]


class OfOneNumber:
    """Answers one number for every molecule, and takes its row for a difficulty if it has parts."""

    calibration, tasks, columns, level = None, TASKS, ["toxic"], "molecule"

    def __init__(self, number, parts=False):
        self.number, self.parts = number, parts

    def measure(self, store, rows):
        found = {"parts": rows[:, None].astype(np.float32)} if self.parts else {}
        return np.full((len(rows), 1), self.number, np.float32), found


class OfSites:
    """A store of molecules, of which row r has r atoms."""

    def site_counts(self, level, rows):
        return np.ones(len(rows), int) if level == "molecule" else rows


MODELS = [OfOneNumber(0.2, parts=True), OfOneNumber(0.6), OfOneNumber(0.9)]
SPLITS = [{"test": np.array([5, 1])}, {"test": np.array([1, 3])}, {"train": np.array([1])}]


def test_each_answers_for_its_own():
    rows = rows_of(SPLITS, "test")
    own = ask_each(MODELS, SPLITS, "test", OfSites(), rows)
    assert rows.tolist() == [1, 3, 5] and own.asked.tolist() == [2, 1, 1]
    np.testing.assert_allclose(own.each[:, :, 0], [[0.2, np.nan, 0.2], [0.6, 0.6, np.nan], [np.nan] * 3], rtol=1e-6)
    np.testing.assert_allclose(own.mean[:, 0], [0.4, 0.6, 0.2], rtol=1e-6)
    np.testing.assert_allclose(own.difficulty["parts"][:, 0], [0.5, 0, 5])  # a model of one part agrees with itself


@pytest.mark.parametrize("temperature", [1, 2])
def test_answers_are_tempered_together(temperature):
    target = TargetCalibration((Scores.of(np.zeros(1), np.zeros(1)),) * 2, {"constant": 1.0}, temperature)
    domain = Domain.of(np.zeros((1, BITS), bool), np.zeros(1, np.int64), 0)
    source = SimpleNamespace(targets=np.zeros((6, 1)), tasks=TASKS)
    data = SimpleNamespace(source=source, store=OfSites())
    found = answer(MODELS, Calibration((target,), domain), SPLITS, "test", data)
    logits = np.log(np.array([0.4, 0.6, 0.2]) / np.array([0.6, 0.4, 0.8]))
    np.testing.assert_allclose(found.values[:, 0], 1 / (1 + np.exp(-logits / temperature)), rtol=1e-5)
    np.testing.assert_allclose(found.spread[:, 0], [np.std([0.2, 0.6], ddof=1), np.nan, np.nan], rtol=1e-6)


class OfAtoms(OfOneNumber):
    level = "atom"

    def measure(self, store, rows):
        return super().measure(store, np.repeat(rows, store.site_counts(self.level, rows)))


def test_each_answers_for_the_atoms_of_its_own():
    splits = [{"test": np.array([2, 0])}, {"test": np.array([1, 2])}]  # the first molecule has none
    own = ask_each([OfAtoms(0.2, parts=True), OfAtoms(0.6)], splits, "test", OfSites(), np.arange(3))
    assert own.ptr.tolist() == [0, 0, 1, 3] and own.asked.tolist() == [1, 2, 2]
    np.testing.assert_allclose(own.each[:, :, 0], [[np.nan, 0.2, 0.2], [0.6] * 3], rtol=1e-6)
    np.testing.assert_allclose(own.mean[:, 0], [0.6, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(own.difficulty["parts"][:, 0], [0, 1, 1])
