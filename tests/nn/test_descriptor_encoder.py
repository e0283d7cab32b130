"""Standardisation and encoding of descriptors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import StandardScaler

from graphslice import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer
from graphslice.nn.descriptors import DescriptorEncoder, fit_standardisation

TINY = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16}


def fitted(values: np.ndarray) -> DescriptorEncoder:
    encoder = DescriptorEncoder(values.shape[1], 8).eval()
    encoder.fit(torch.from_numpy(values.astype(np.float32)))
    return encoder


def z_of(encoder: DescriptorEncoder, values) -> np.ndarray:
    return encoder.standardised(torch.as_tensor(np.asarray(values), dtype=torch.float32)).numpy()


def test_matches_scikit_learn_without_clipping():
    values = np.random.default_rng(0).uniform(-3, 50, (400, 200)).astype(np.float32)  # more columns than a block
    np.testing.assert_allclose(z_of(fitted(values), values), StandardScaler().fit_transform(values), atol=2e-5)


def test_unknown_values_are_ignored_and_replaced_by_the_mean():
    values = np.random.default_rng(1).normal(5, 2, (300, 3)).astype(np.float32)
    values[::3, 0], values[1::4, 1] = np.nan, np.inf
    low, high = np.nanquantile(np.where(np.isinf(values), np.nan, values).astype(float), [0.005, 0.995], axis=0)
    known = np.where(np.isinf(values), np.nan, values)
    span = high - low
    clipped = known.clip(np.maximum(np.nanmin(known, 0), low - span), np.minimum(np.nanmax(known, 0), high + span))
    centre, scale, *_ = (value.numpy() for value in fit_standardisation(torch.from_numpy(values)))
    scaler = StandardScaler().fit(clipped.astype(float))
    np.testing.assert_allclose(centre, scaler.mean_, rtol=1e-5)
    np.testing.assert_allclose(scale, scaler.scale_, rtol=1e-5)
    z = z_of(fitted(values), [[np.nan, np.nan, 5.0]])
    assert z[0, :2].tolist() == [0, 0] and z[0, 2] != 0


def test_one_outlier_has_little_effect():
    values = np.random.default_rng(2).normal(0, 1, (1000, 1))
    clean, outlier = fitted(values), fitted(np.vstack([values, [[1e18]]]))
    assert outlier.scale.item() == pytest.approx(clean.scale.item(), rel=0.1)
    assert abs(z_of(outlier, [[1e18]])).item() <= 5 and np.isfinite(z_of(outlier, [[np.inf], [-np.inf], [3e38]])).all()


def test_rare_environment_is_bounded_but_not_ignored():
    values = np.zeros((1000, 2))
    values[:2, 0] = 1
    z = z_of(fitted(values), [[1, 1], [0, 0]])
    assert 1 < z[0, 0] <= 5.001 and z[1, 0] < 0 and z[0, 1] == z[1, 1] == 0


@pytest.mark.parametrize(
    "column", [[7.1] * 4, [np.nan] * 4, [np.nan, 3.3, np.nan, 3.3], [np.inf] * 4, [1e-45, 0, 0, 0]]
)
def test_constant_or_unknown_descriptor_is_zero(column):
    encoder = fitted(np.array(column)[:, None])
    assert z_of(encoder, [[0.0], [7.1], [1e30], [np.nan], [-np.inf]]).tolist() == [[0.0]] * 5


numbers = st.floats(-(2.0**60), 2.0**60, width=32) | st.just(float("nan")) | st.sampled_from([0.0, 1.0])


@settings(max_examples=40)
@given(arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=numbers), st.floats(width=32))
def test_standardised_values_are_finite_and_bounded(values, other):
    encoder = fitted(values)
    z = z_of(encoder, np.vstack([values, np.full((1, values.shape[1]), other)]))
    assert np.isfinite(z).all() and np.abs(z).max() <= 5.01
    assert torch.isfinite(encoder(torch.from_numpy(values))).all()


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_encoded_descriptors_follow_the_readouts(head):
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(**TINY, head=head, readout="token+max", descriptors=2)).eval()
    model.descriptors.fit(torch.randn(50, 2))
    graphs = [smiles_to_graph("CCO"), smiles_to_graph("C")]
    batch = collate(graphs, {"a": np.array([1, 5]), "b": np.array([np.nan, 2])}, descriptors=["b", "a"])
    assert batch.descriptors.dtype == torch.float32
    np.testing.assert_array_equal(batch.descriptors, [[np.nan, 1], [2, 5]])
    head_inputs = []
    model.head.register_forward_pre_hook(lambda module, inputs: head_inputs.append(inputs[0]))
    model(batch).sum().backward()
    assert head_inputs[0].shape == (2, 3 * 16)
    torch.testing.assert_close(head_inputs[0][:, 32:], model.descriptors(batch.descriptors))
    assert all(p.grad is not None for name, p in model.named_parameters() if "descriptors" in name)


def test_batch_with_another_number_of_descriptors_is_an_error():
    model = GraphTransformer(ModelConfig(**TINY, descriptors=2))
    for number, values in (("none", {}), ("1", {"values": {"a": np.ones(1)}, "descriptors": ["a"]})):
        with pytest.raises(ValueError, match=f"model expects 2 descriptors per molecule, but the batch has {number}"):
            model(collate([smiles_to_graph("C")], **values))
