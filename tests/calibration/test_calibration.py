import numpy as np
import pandas as pd
import pytest

from graphslice.calibration import ApplicabilityDomain, Calibration, fit_calibration
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.errors import InputError
from graphslice.tasks import Task

TASKS = [
    Task("number"),
    Task("skewed", transform="log"),
    Task("active", "binary", ("no", "yes")),
    Task("kind", "multiclass", ("a", "b", "c")),
]
DOMAIN = ApplicabilityDomain.from_fingerprints(np.ones((1, DOMAIN_BITS), bool), np.array([0]), 0)


def fit(predictions, difficulty, labels):
    return fit_calibration(predictions, difficulty, labels, np.arange(len(labels)), TASKS, DOMAIN)


def simulate(rows: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Simulate predictions, difficulty and labels of a model whose errors are proportional to the difficulty."""
    random = np.random.default_rng(seed)
    truth, hard = random.normal(size=rows), random.gamma(2, size=rows)
    wrong = truth + 0.2 * hard * random.normal(size=rows)
    p = random.beta(0.7, 0.7, size=rows)
    shares = random.dirichlet([0.6] * 3, size=rows)
    kinds = (random.random((rows, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    predictions = np.column_stack([wrong, np.exp(wrong), p, shares]).astype(np.float32)
    labels = np.column_stack([truth, np.exp(truth), random.random(rows) < p, kinds.clip(0, 2)]).astype(np.float64)
    labels[random.random(labels.shape) < 0.05] = np.nan
    return predictions, {"hard": np.repeat(hard[:, None], 4, axis=1).astype(np.float32)}, labels


@pytest.fixture(scope="module")
def calibration():
    return fit(*simulate(2000, 0))


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_coverage_of_new_molecules(calibration, coverage):
    predictions, difficulty, labels = simulate(4000, 1)
    low, high = calibration.prediction_intervals(predictions, difficulty, TASKS, coverage)
    for t in (0, 1):
        known = ~np.isnan(labels[:, t])
        inside = (low[known, t] <= labels[known, t]) & (labels[known, t] <= high[known, t])
        assert inside.mean() == pytest.approx(coverage, abs=0.025)
    assert np.isnan(low[:, 2:]).all() and (low[:, 1] > 0).all()
    prediction_sets = calibration.prediction_sets(predictions, TASKS, coverage)
    for t, name in ((2, "active"), (3, "kind")):
        for k in range(prediction_sets[name].shape[1]):  # of every class
            in_class = labels[:, t] == k
            assert prediction_sets[name][in_class, k].mean() == pytest.approx(coverage, abs=0.035)


def test_intervals_are_wider_for_difficult_molecules(calibration):
    predictions, difficulty, labels = simulate(4000, 2)
    low, high = calibration.prediction_intervals(predictions, difficulty, TASKS, 0.9)
    width, hard = high[:, 0] - low[:, 0], difficulty["hard"][:, 0]
    assert np.corrcoef(width, hard)[0, 1] > 0.95
    known = ~np.isnan(labels[:, 0])
    inside = (low[:, 0] <= labels[:, 0]) & (labels[:, 0] <= high[:, 0])
    constant = fit(predictions, {}, labels)
    low, high = constant.prediction_intervals(predictions, {}, TASKS, 0.9)
    assert np.ptp(high[:, 0] - low[:, 0]) < 1e-5 and width.mean() < (high[:, 0] - low[:, 0]).mean()
    equal = (low[:, 0] <= labels[:, 0]) & (labels[:, 0] <= high[:, 0])
    for subset in (hard < 1, hard > 3):  # constant width covers nearly all of the first and too few of the second
        assert abs(inside[known & subset].mean() - 0.9) < abs(equal[known & subset].mean() - 0.9)


def test_few_molecules_give_unbounded_intervals():
    predictions, difficulty, labels = simulate(12, 3)
    result = fit(predictions, difficulty, labels)
    low, high = result.prediction_intervals(predictions, difficulty, TASKS, 0.95)
    assert (low[:, 0] == -np.inf).all() and (high[:, 0] == np.inf).all()
    prediction_sets = result.prediction_sets(predictions, TASKS, 0.95).values()
    assert (low[:, 1] == 0).all() and all(each.all() for each in prediction_sets)
    uncalibrated = fit(predictions, difficulty, np.full_like(labels, np.nan))
    assert (uncalibrated.prediction_intervals(predictions, difficulty, TASKS, 0.5)[1][:, 0] == np.inf).all()
    np.testing.assert_array_equal(uncalibrated.probabilities(predictions, TASKS), predictions)


@pytest.mark.parametrize("molecules", [20, 24, 25])
def test_scores_and_intervals_use_the_same_scale(molecules):
    """Near the minimum number of molecules, cross-fitting must not mix constant and fitted scales."""
    random, inside = np.random.default_rng(5), []
    for _ in range(400):
        difficulty = {"distance": random.gamma(1, 1, (molecules + 50, 1))}
        predictions = random.normal(size=(molecules + 50, 1)).astype(np.float32)
        errors = random.normal(size=predictions.shape) * (0.1 + difficulty["distance"])
        old, new = ({"distance": difficulty["distance"][part]} for part in (slice(molecules), slice(molecules, None)))
        rows, y = np.arange(molecules), predictions.astype(float) + errors
        result = fit_calibration(predictions[:molecules], old, y[:molecules], rows, [Task("y")], DOMAIN)
        low, high = result.prediction_intervals(predictions[molecules:], new, [Task("y")], 0.9)
        inside.append(((low <= y[molecules:]) & (y[molecules:] <= high)).mean())
    ideal = np.ceil(0.9 * (molecules + 1)) / (molecules + 1)
    assert np.mean(inside) == pytest.approx(ideal, abs=0.015)


def results(calibration: Calibration, seed: int) -> list[np.ndarray]:
    """Return the intervals and the sets of simulated predictions."""
    predictions, difficulty, _ = simulate(50, seed)
    intervals = calibration.prediction_intervals(predictions, difficulty, TASKS, 0.9)
    return [*intervals, *calibration.prediction_sets(predictions, TASKS, 0.9).values()]


@pytest.mark.parametrize("level", ["molecule", "atom"])
def test_round_trip(level, calibration, atom_and_molecule_calibrations):
    calibration = atom_and_molecule_calibrations[0] if level == "atom" else calibration
    values = calibration.to_dict()
    for found, expected in zip(results(Calibration.from_dict(values, TASKS), 4), results(calibration, 4), strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(InputError, match="other targets"):
        Calibration.from_dict(values, TASKS[::-1])


def test_unbounded_intervals_survive_round_trip():
    """With so few molecules no finite score has the required coverage."""
    few = fit(*simulate(3, 0))
    restored = Calibration.from_dict(few.to_dict(), TASKS)
    predictions, difficulty, _ = simulate(3, 1)
    low, high = restored.prediction_intervals(predictions, difficulty, TASKS, 0.9)
    assert (low[:, 0] == -np.inf).all() and (high[:, 0] == np.inf).all()
    assert restored.unbounded_targets(TASKS, 0.9) == ["number", "skewed"]


@pytest.fixture(scope="module")
def atom_and_molecule_calibrations():
    """Calibrations on molecules of 1 to 6 identical atoms, and on the same data with one row per molecule."""
    predictions, difficulty, labels = simulate(300, 5)
    molecule = np.repeat(np.arange(300), np.random.default_rng(6).integers(1, 7, 300))
    atom_data = predictions[molecule], {name: each[molecule] for name, each in difficulty.items()}, labels[molecule]
    return fit_calibration(*atom_data, molecule, TASKS, DOMAIN), fit(predictions, difficulty, labels)


def test_identical_atoms_count_as_one_molecule(atom_and_molecule_calibrations):
    predictions, difficulty, _ = simulate(200, 7)
    found, expected = ([each.targets[t].temperature for t in range(4)] for each in atom_and_molecule_calibrations)
    np.testing.assert_allclose(found, expected)
    found, expected = (
        np.stack(each.prediction_intervals(predictions, difficulty, TASKS, 0.9))
        for each in atom_and_molecule_calibrations
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found, expected = (
        each.prediction_sets(each.probabilities(predictions, TASKS), TASKS, 0.9)
        for each in atom_and_molecule_calibrations
    )
    assert all((found[name] == expected[name]).mean() > 0.999 for name in ("active", "kind"))


def test_atom_level_set_coverage_is_averaged_over_molecules():
    """Small molecules are more difficult. For each class, coverage is the mean over the molecules that contain it."""
    random = np.random.default_rng(9)

    def simulate_atoms(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = random.choice([1, 12], count)
        molecule = np.repeat(np.arange(count), sizes)
        y = (random.random(len(molecule)) < 0.3).astype(float)
        logit = (np.where(sizes == 1, 0.5, 3.0) + random.normal(size=count))[molecule]
        return 1 / (1 + np.exp(-np.where(y == 1, logit, -logit)))[:, None].astype(np.float32), y[:, None], molecule

    predictions, labels, molecule = simulate_atoms(3000)
    calibration = fit_calibration(predictions, {}, labels, molecule, TASKS[2:3], DOMAIN)
    predictions, labels, molecule = simulate_atoms(3000)
    probabilities = calibration.probabilities(predictions, TASKS[2:3])
    prediction_sets = calibration.prediction_sets(probabilities, TASKS[2:3], 0.9)["active"]
    for k in (0, 1):
        in_class = labels[:, 0] == k
        covered = pd.Series(prediction_sets[in_class, k]).groupby(molecule[in_class]).mean()
        assert covered.mean() == pytest.approx(0.9, abs=0.02) and prediction_sets[in_class, k].mean() > 0.93
