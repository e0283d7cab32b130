"""Stacking weights and comparison of models, against scikit-learn's metrics and scipy's bootstrap."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.stacking.stacking import HeldOutLosses, choose_weights


def fit_stacking_weights(predictions, y, kind, molecules=None) -> np.ndarray:
    """Weights of a single target."""
    return choose_weights([HeldOutLosses(predictions, y, kind, molecules)])[:, 0]


def numbers(rows: int, *noises: float) -> tuple[np.ndarray, list[np.ndarray]]:
    random = np.random.default_rng(rows)
    y = random.normal(size=rows)
    return y, [(y + random.normal(size=rows) * noise)[:, None] for noise in noises]


def probabilities(y: np.ndarray, classes: int, strength: float) -> np.ndarray:
    random = np.random.default_rng(int(100 * strength))
    logits = random.normal(size=(len(y), classes)) + strength * (np.arange(classes) == y[:, None])
    weights = np.exp(logits)
    return weights / weights.sum(axis=1, keepdims=True)


def test_many_rows_favour_the_best_model():
    y, predictions = numbers(4000, 0.1, 2.0)
    weights = fit_stacking_weights(predictions, y, "regression")
    assert weights[0] > 0.9 and weights.sum() == pytest.approx(1) and (weights >= 0).all()
    assert fit_stacking_weights(predictions[::-1], y, "regression") == pytest.approx(weights[::-1])


def test_few_rows_give_nearly_equal_weights():
    y, predictions = numbers(12, 1.0, 1.05)
    assert abs(fit_stacking_weights(predictions, y, "regression")[0] - 0.5) < 0.35
    y, predictions = numbers(4, 0.1, 2.0, 3.0)
    assert np.array_equal(fit_stacking_weights(predictions, y, "regression"), np.full(3, 1 / 3))
    y[1], predictions = np.nan, [np.ones((4, 1)), np.zeros((4, 1))]
    assert np.array_equal(fit_stacking_weights(predictions, np.ones(4), "binary"), [0.5, 0.5])
    assert np.array_equal(fit_stacking_weights([*predictions], np.full(4, np.nan), "binary"), [0.5, 0.5])
    assert np.array_equal(
        fit_stacking_weights([np.ones((40, 1)), np.zeros((40, 1))], np.ones(40), "binary"), [0.5, 0.5]
    )
    assert np.array_equal(fit_stacking_weights(predictions[:1], y, "regression"), [1.0])


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass"])
def test_weights_match_manual_computation(kind):
    """Average all weights within two standard errors of the best, paired over rows, computed in loops."""
    rows, classes = 60, 3 if kind == "multiclass" else 2
    y = np.random.default_rng(0).integers(classes, size=rows).astype(float)
    predictions = [probabilities(y, classes, strength) for strength in (1.5, 1.45, 1.4)]
    if kind == "regression":
        y, predictions = numbers(rows, 0.8, 0.9, 1.0)
    accepted = []
    grid = [(a, b, 10 - a - b) for a in range(11) for b in range(11 - a)]
    losses = []
    for weights in grid:
        prediction = sum(weight / 10 * each for weight, each in zip(weights, predictions, strict=True))
        if kind == "regression":
            losses.append([abs(prediction[k, 0] - y[k]) for k in range(rows)])
        else:
            losses.append([-math.log(prediction[k, int(y[k])]) for k in range(rows)])
    best = min(losses, key=np.mean)
    for weights, loss in zip(grid, losses, strict=True):
        difference = np.subtract(loss, best)
        if difference.mean() <= 2 * np.std(difference, ddof=1) / rows**0.5:
            accepted.append(weights)
    assert 1 < len(accepted) < len(grid)
    expected, means = np.mean(accepted, axis=0) / 10, np.mean(losses, axis=1)
    alone = min(mean for weights, mean in zip(grid, means, strict=True) if 10 in weights)
    averaged = sum(weight * each for weight, each in zip(expected, predictions, strict=True))
    if kind == "regression":
        loss = np.mean([abs(averaged[k, 0] - y[k]) for k in range(rows)])
    else:
        loss = np.mean([-math.log(averaged[k, int(y[k])]) for k in range(rows)])
    if loss >= alone:  # a model alone is better: the nearest weights that are better than it
        better = [weights for weights, mean in zip(grid, means, strict=True) if mean < alone]
        expected = np.array(min(better, key=lambda weights: sum((np.array(weights) / 10 - expected) ** 2))) / 10
    class_predictions = [prediction[:, 1:] for prediction in predictions] if kind == "binary" else predictions
    assert fit_stacking_weights(class_predictions, y, kind) == pytest.approx(expected)


def test_rows_with_missing_values_are_ignored():
    y, predictions = numbers(50, 0.5, 0.6)
    more = [np.concatenate([prediction, [[3.0], [np.nan]]]) for prediction in predictions]
    found = fit_stacking_weights(more, np.concatenate([y, [np.nan, 5.0]]), "regression")
    assert np.array_equal(found, fit_stacking_weights(predictions, y, "regression"))


def test_rows_of_a_molecule_count_as_one():
    y, predictions = numbers(40, 0.5, 0.7)
    molecule, repeated_labels = np.tile(np.arange(40), 20), np.tile(y, 20)
    repeated = [np.tile(each, (20, 1)) for each in predictions]
    weights = fit_stacking_weights(repeated, repeated_labels, "regression", molecule)
    assert weights == pytest.approx(fit_stacking_weights(predictions, y, "regression"))
    few = fit_stacking_weights(
        [each[molecule < 4] for each in repeated], repeated_labels[molecule < 4], "regression", molecule[molecule < 4]
    )
    assert np.array_equal(few, [0.5, 0.5])


def test_a_target_with_few_labels_has_the_weights_of_the_others():
    y, good_first = numbers(400, 0.3, 0.6)
    few_y, few = numbers(12, 0.5, 0.45)
    many = HeldOutLosses(good_first, y, "regression")
    both = choose_weights([many, HeldOutLosses(few, few_y, "regression")])
    alone = choose_weights([HeldOutLosses(few, few_y, "regression")])[:, 0]
    assert both[0, 1] > alone[0] + 0.05
    assert choose_weights([many, many]) == pytest.approx(np.stack([choose_weights([many])[:, 0]] * 2, axis=1), abs=0.1)


@pytest.mark.parametrize("error", [0.0, 1e-9, 0.003])
def test_a_target_that_one_model_predicts_exactly_does_not_decide_for_the_others(error):
    y, predictions = numbers(120, 0.3, 0.3, 0.9, 0.9)
    own = HeldOutLosses(predictions, y, "regression")
    _, others = numbers(120, 0.3, 0.3, 0.3, error)
    exact = HeldOutLosses(others, y, "regression")
    alone, together = choose_weights([own])[:, 0], choose_weights([own, exact])
    assert together[:, 0] == pytest.approx(alone, abs=0.1) and together[3, 1] > 0.9
    assert choose_weights([exact])[3, 0] > 0.9 and choose_weights([exact, exact])[3].min() > 0.9


def test_squared_errors_weigh_large_errors_more():
    y = np.zeros(200)
    often, rarely = np.full((200, 1), 1.0), np.where(np.arange(200) % 10 == 0, 7.0, 0.0)[:, None]
    absolute, squared = (
        choose_weights([HeldOutLosses([often, rarely], y, "regression", squared=flag)])[0, 0] for flag in (False, True)
    )
    assert absolute < 0.2 and squared > 0.7


@given(st.integers(5, 40), st.integers(0, 200), st.booleans())
def test_the_stack_is_never_worse_than_its_best_model(rows, seed, classes):
    random = np.random.default_rng(seed)
    y = random.integers(2, size=rows) * 1.0 if classes else random.normal(size=rows)
    noisy = [random.random((rows, 1)) if classes else y[:, None] + random.normal(size=(rows, 1)) for _ in range(3)]
    losses = HeldOutLosses(noisy, y, "binary" if classes else "regression")
    if losses.is_known:
        best = min(losses.of(single).mean() for single in np.eye(3))
        weights = choose_weights([losses])[:, 0]
        assert (weights >= 0).all() and weights.sum() == pytest.approx(1) and losses.of(weights).mean() <= best


def test_the_best_model_wins_ties():
    y = np.zeros(50)
    same = [np.ones((50, 1)), np.ones((50, 1))]
    assert sorted(choose_weights([HeldOutLosses(same, y, "regression")])[:, 0].tolist()) == [0.0, 1.0]
    apart = [np.ones((50, 1)), np.full((50, 1), 3.0)]
    assert choose_weights([HeldOutLosses(apart, y, "regression")])[:, 0].tolist() == [1.0, 0.0]


def test_losses_of_bounds_are_distances_of_each_average_from_them():
    y, predictions = numbers(30, 0.5, 1.0)
    bounds = np.full((30, 2), (-np.inf, np.inf))
    bounds[:5, 0], bounds[5:9, 1] = 0.2, -0.1
    y[:9] = np.nan
    y[29], predictions[0][28] = np.nan, np.nan
    losses = HeldOutLosses(predictions, y, "regression", bounds=bounds)
    for weights in ([1.0, 0.0], [0.3, 0.7]):
        average = sum(weight * each[:, 0] for weight, each in zip(weights, predictions, strict=True))
        errors = np.abs(average - y)
        errors[:9] = np.maximum(np.maximum(bounds[:9, 0] - average[:9], average[:9] - bounds[:9, 1]), 0)
        assert losses.of(np.array(weights)) == pytest.approx(errors[:28])


def test_losses_with_weights_are_those_of_repeated_rows():
    y, predictions = numbers(20, 0.5, 1.0)
    counts = np.random.default_rng(0).integers(1, 5, 20)
    molecules = np.repeat(np.arange(10), 2)
    losses = HeldOutLosses(predictions, y, "regression", molecules, weights=counts.astype(float))
    repeated = [np.repeat(each, counts, axis=0)[:, 0] for each in predictions]
    for weights in ([1.0, 0.0], [0.3, 0.7]):
        average = sum(weight * each for weight, each in zip(weights, repeated, strict=True))
        assert losses.of(np.array(weights)).mean() == pytest.approx(np.abs(average - np.repeat(y, counts)).mean())


def test_a_target_with_too_few_labels_has_the_mean_of_the_other_weights():
    random = np.random.default_rng(0)
    y = random.normal(size=60)
    models = [(y + scale * random.normal(size=60))[:, None] for scale in (0.5, 0.55, 0.6)]
    few = np.where(np.arange(60) < 3, y, np.nan)
    weights = choose_weights([HeldOutLosses(models, labels, "regression") for labels in (y, few, -y)])
    np.testing.assert_allclose(weights[:, 1], weights[:, [0, 2]].mean(axis=1))
