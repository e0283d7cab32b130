import numpy as np
import pytest

from graphslice.config import ModelConfig, RunConfig
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint, add_to_checkpoint, read_checkpoint, save_checkpoint
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import (
    combine_predictions,
    fit_base_models,
    fit_weights,
    predict_base_models,
    weighted_std,
)
from graphslice.tasks import Task

RANDOM = np.random.default_rng(0)
TASKS = [Task("size"), Task("kind", "multiclass", ("a", "b", "c")), Task("active", "binary", ("no", "yes"))]
X = RANDOM.normal(size=(60, 5)).astype(np.float32)
LABELS = np.stack([X[:, 0] * 2, (X[:, 1] > 0) + (X[:, 1] > 1), X[:, 2] > 0], axis=1).astype(np.float64)


@pytest.fixture(scope="module")
def trees():
    labels = LABELS.copy()
    labels[::7, 0] = np.nan
    return fit_base_models(X, labels, TASKS, seed=0)


@pytest.fixture(scope="module")
def stacking(trees):
    return Stacking(trees, np.array([[0.5, 1, 0.2], [0.5, 0, 0.3], [0, 0, 0.4], [0, 0, 0.1]]))


def stacked_predictions(stacking, network, x, tasks):
    return combine_predictions(stacking.base_predictions(network, x), stacking.weights, tasks)


def test_base_models_predict_every_target(trees):
    assert list(trees) == ["forest", "boosting", "kernel"]
    for name, models in trees.items():
        predictions = predict_base_models(models, X)
        assert predictions.shape == (60, 5) and predictions.dtype == np.float32
        np.testing.assert_allclose(predictions[:, 1:4].sum(axis=1), 1, rtol=1e-5)
        if name != "kernel":  # which reads these numbers as counts
            assert np.corrcoef(predictions[:, 0], LABELS[:, 0])[0, 1] > 0.8
            assert ((predictions[:, 4] > 0.5) == LABELS[:, 2]).mean() > 0.9


def test_weighted_std_matches_manual_computation():
    tasks = [Task("a"), Task("b", transform="log"), Task("c", "binary", ("no", "yes"))]
    parts = [np.array([[1.0, np.e, 0.1]]), np.array([[3.0, 1.0, 0.9]]), np.array([[100.0, np.e, 0.5]])]
    weights = np.array([[0.5, 0.25, 0.5], [0.5, 0.75, 0.5], [0, 0, 0]])
    # Target a: mean 2 of 1 and 3. Target b: logarithms 1 and 0 with mean 0.25 and variance 3/16.
    np.testing.assert_allclose(weighted_std(parts, weights, tasks), [[1, np.sqrt(3) / 4, 0]], rtol=1e-6)


def test_a_base_model_without_weight_is_not_evaluated(trees):
    stacking = Stacking(trees, np.array([[1.0] * 3, *[[0.0] * 3] * (len(trees))]))
    network = RANDOM.uniform(size=(60, 5)).astype(np.float32)
    parts = stacking.base_predictions(network, X)
    assert all((part == 0).all() for part in parts[1:])
    np.testing.assert_array_equal(combine_predictions(parts, stacking.weights, TASKS), network)


def test_stacking_survives_a_checkpoint(stacking, tmp_path):
    config = RunConfig(model=ModelConfig(layers=1, dim=8, heads=2, ffn_dim=8, tasks=5))
    model = GraphTransformer(config.model)
    save_checkpoint(Checkpoint(config, TASKS, model.state_dict()), tmp_path / "plain.safetensors")
    assert read_checkpoint(tmp_path / "plain.safetensors").stacking is None
    add_to_checkpoint(tmp_path / "plain.safetensors", stacking)
    save_checkpoint(Checkpoint(config, TASKS, model.state_dict(), stacking=stacking), tmp_path / "whole.safetensors")
    network = RANDOM.uniform(size=(60, 5)).astype(np.float32)
    for name in ("plain.safetensors", "whole.safetensors"):
        back = read_checkpoint(tmp_path / name)
        assert back.tasks == TASKS
        np.testing.assert_array_equal(
            stacked_predictions(back.stacking, network, X, TASKS), stacked_predictions(stacking, network, X, TASKS)
        )


def test_log_transformed_targets_are_averaged_as_logarithms():
    x, labels = X, np.exp(X[:, :1].astype(np.float64))
    task = [Task("clearance", transform="log")]
    trees = fit_base_models(x, labels, task, seed=0)
    network = np.exp(RANDOM.normal(size=(60, 1))).astype(np.float32)
    forest = predict_base_models(trees["forest"], x).astype(np.float64)
    predictions = stacked_predictions(Stacking(trees, np.array([[0.25], [0.75], [0], [0]])), network, x, task)
    np.testing.assert_allclose(predictions, network**0.25 * forest**0.75, rtol=1e-5)
    # One extreme label would dominate the mean error, but not that of logarithms.
    with_outlier = np.where(np.arange(60)[:, None] == 7, 1e6 * labels, labels)
    assert fit_weights([labels * 1.01, labels * 3], with_outlier, task)[0, 0] > 0.9


def test_a_target_without_labels_gets_a_constant():
    labels = LABELS.copy()
    labels[:, :2] = np.nan
    for models in fit_base_models(X, labels, TASKS, seed=0).values():
        found = predict_base_models(models, X)
        assert (found[:, :4] == found[0, :4]).all() and found[:, 4].std() > 0
