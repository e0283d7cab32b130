from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.calibration import calibration as conformal
from graphslice.calibration.calibration import CONSTANT, NonconformityScores, coverage_of_level
from graphslice.errors import InputError


@pytest.mark.parametrize("level", [49, 100, 0.9, float("nan"), "90", None, True])
def test_invalid_level_is_rejected(level):
    with pytest.raises(InputError, match="percent, such as 90, not"):
        coverage_of_level(level)


@pytest.mark.parametrize("level", [90, 90.0, np.int64(90), np.float32(90)])
def test_level_of_any_numeric_type(level):
    assert coverage_of_level(level) == pytest.approx(0.9)


@given(st.integers(1, 300), st.integers(50, 99))
def test_quantile_rank(count, level):
    """The quantile is the smallest score that at least ceil((n + 1) level) scores do not exceed."""
    scores = np.sort(np.random.default_rng(count).random(count))
    needed = -(-(count + 1) * level // 100)
    found = NonconformityScores.from_rows(scores, np.arange(count)).quantile(coverage_of_level(level))
    if needed > count:
        assert found == np.inf
    else:
        assert (scores <= found).sum() == needed


@given(st.integers(50, 99))
def test_min_calibration_molecules_gives_finite_quantile(level):
    needed = conformal.min_calibration_molecules(coverage_of_level(level))
    for count in (needed - 1, needed):
        found = NonconformityScores.from_rows(np.arange(count, dtype=float), np.arange(count)).quantile(
            coverage_of_level(level)
        )
        assert np.isfinite(found) == (count == needed)


def test_coverage_of_new_molecules():
    """Mean coverage over many calibrations on few molecules reaches the level."""
    random = np.random.default_rng(0)
    for level in (0.8, 0.9):
        inside = [
            random.normal() ** 2
            <= NonconformityScores.from_rows(random.normal(size=30) ** 2, np.arange(30)).quantile(level)
            for _ in range(4000)
        ]
        assert level - 0.02 < np.mean(inside) < level + 0.04


def test_informative_difficulty_gets_the_weight():
    random = np.random.default_rng(0)
    useful, noise = random.gamma(2, size=500), random.gamma(2, size=500)
    errors = np.abs(random.normal(size=500)) * useful
    weights = conformal.fit_interval_scale({"useful": useful, "noise": noise}, errors, np.arange(500))
    # The mean of this gamma distribution is 2.
    share = {name: weight * (1 if name == CONSTANT else 2) for name, weight in weights.items()}
    assert share["useful"] > 0.5 > share.get("noise", 0) + share[CONSTANT] and sum(share.values()) == pytest.approx(
        1, abs=0.1
    )
    scale = conformal.interval_scale({"useful": useful, "noise": noise}, weights, 500)
    assert scale.min() > 0 and np.corrcoef(scale, useful)[0, 1] > 0.9 and scale.mean() == pytest.approx(1, rel=1e-6)


def test_few_or_constant_rows_give_equal_scales():
    random = np.random.default_rng(1)
    assert conformal.fit_interval_scale({"a": random.random(10)}, random.random(10), np.arange(10)) == {CONSTANT: 1.0}
    assert conformal.fit_interval_scale({"a": np.zeros(50)}, random.random(50), np.arange(50)) == {CONSTANT: 1.0}
    assert conformal.interval_scale({"a": np.ones(3)}, {CONSTANT: 1.0}, 3).tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="an estimate that the model lacks: 'b'"):
        conformal.interval_scale({"a": np.ones(3)}, {CONSTANT: 1.0, "b": 1.0}, 3)
    weights = conformal.fit_interval_scale({"a": random.random(50)}, np.zeros(50), np.arange(50))  # all errors are zero
    assert np.isfinite(list(weights.values())).all() and weights[CONSTANT] > 0


@st.composite
def atom_scores(draw):
    """Draw scores of the atoms of molecules, with ties, and molecules of one atom."""
    return draw(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=9), min_size=1, max_size=25))


@given(atom_scores(), st.integers(50, 99))
def test_quantile_of_atoms_matches_definition(molecules, level):
    """Definition in exact fractions: an atom of n counts 1/n, and one more molecule has an infinite score."""
    atoms = [(score, Fraction(1, len(each))) for each in molecules for score in each]
    needed = Fraction(level, 100) * (len(molecules) + 1)
    expected = next((s for s in range(7) if sum(w for score, w in atoms if score <= s) >= needed), np.inf)
    molecule = np.repeat(np.arange(len(molecules)), [len(each) for each in molecules])
    scores = NonconformityScores.from_rows(np.array([score for score, _ in atoms], float), molecule)
    assert scores.quantile(coverage_of_level(level)) == expected
    assert (np.diff(scores.values) >= 0).all() and np.isclose((1 / scores.counts).sum(), len(molecules))


def simulate_atom_errors(random: np.random.Generator, count: int) -> list[np.ndarray]:
    """Simulate errors of atoms: those of one molecule are similar, and small molecules have larger errors."""
    sizes = random.choice([1, 2, 30], count)
    return [random.gamma(3, 1 / (1 + (n > 2) * 4)) * (1 + 0.1 * random.random(n)) for n in sizes.tolist()]


def test_atom_coverage_of_new_molecules():
    """Mean coverage over many calibrations reaches the level; pooling all atoms would give too little."""
    random = np.random.default_rng(0)
    inside: dict[str, list[float]] = {"molecules": [], "atoms": []}
    for _ in range(1500):
        *known, new = simulate_atom_errors(random, 41)
        molecule, scores = np.repeat(np.arange(40), [len(each) for each in known]), np.concatenate(known)
        for name, ids in (("molecules", molecule), ("atoms", np.arange(len(molecule)))):
            inside[name].append((new <= NonconformityScores.from_rows(scores, ids).quantile(0.8)).mean())
    assert 0.78 < np.mean(inside["molecules"]) < 0.84 and np.mean(inside["atoms"]) < 0.65


@given(st.lists(st.integers(0, 5), max_size=30))
def test_mean_per_molecule_matches_pandas(ids):
    random, ids = np.random.default_rng(0), np.array(ids, np.int64)
    values = random.random((2, len(ids)))
    expected = pd.DataFrame(values.T).groupby(ids).mean().to_numpy().T
    np.testing.assert_allclose(conformal.mean_per_molecule(values, ids), expected, rtol=1e-12)


@given(st.integers(0, 50), st.integers(50, 99))
def test_quantile_with_weights_is_the_score_below_which_their_share_lies(seed, level):
    random = np.random.default_rng(seed)
    scores, weights = np.sort(random.random(40)), random.integers(1, 9, 40).astype(float)
    found = NonconformityScores.from_rows(scores, np.arange(40), weights).quantile(level / 100)
    shares = [Fraction(int(weight)) / Fraction(int(weights.sum())) * 40 / 41 for weight in weights]
    below = np.cumsum(shares) >= Fraction(level, 100)
    assert found == (scores[below.argmax()] if below.any() else np.inf)
