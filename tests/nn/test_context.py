"""Graph tensors that the mixers share, and their declaration."""

import pytest
import torch
from mixer_samples import HEADS, graph_context, sample

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer
from graphslice.nn.context import AttentionContext


def test_columns_of_the_padding_are_masked():
    _, bias = sample(5, batch=2)
    context = graph_context(bias, [5, 3])
    expected = torch.softmax(bias[1, :, :3, :3], dim=-1)
    torch.testing.assert_close(context.attn_weights[1, :, :3, :3], expected)
    assert context.attn_weights[1, :, :, 3:].abs().max() == 0
    torch.testing.assert_close(context.attn_weights.sum(-1), torch.ones(2, HEADS, 5, dtype=torch.float64))
    assert context.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert AttentionContext(torch.tensor([2]), 4).attn_weights is None


@pytest.mark.parametrize("name", ["attn_weights", "attn_bias"])
def test_undeclared_tensor_cannot_be_read(name):
    _, bias = sample(5)
    other = {"attn_weights": "attn_bias", "attn_bias": "attn_weights"}[name]
    context = AttentionContext.from_bias(torch.tensor([5]), bias, reads=[other])
    assert getattr(context, other) is not None
    with pytest.raises(RuntimeError, match=f"reads {name} without declaring it: add '{name}' to `reads`"):
        getattr(context, name)


@pytest.mark.parametrize(("mixer", "expected"), [("softmax", "attn_bias"), ("slice-max", "attn_weights")])
def test_only_declared_tensors_are_computed(mixer, expected):
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=1, dim=16, heads=2))
    assert set(model.context(collate([smiles_to_graph("CCO")])).tensors()) == {"lengths", expected}


def test_weights_are_the_identity_and_the_bias_masks_the_padding_without_a_graph():
    v, context = torch.randn(1, 3, 4), AttentionContext(torch.tensor([2]), 3)
    assert torch.equal(context.aggregate(v), v)
    assert context.attn_bias.tolist() == [[[[0.0, 0.0, -torch.inf]]]]


def test_gradients_of_the_weights_accumulate_in_float32():
    """In bfloat16 the sum would be even."""
    weights = torch.full((1, 1, 2, 2), 0.5, requires_grad=True)
    v = torch.ones(1, 2, 8, dtype=torch.bfloat16)

    def layers(weights):
        context = AttentionContext(torch.tensor([2]), 2, attn_weights=weights)
        return torch.stack([context.aggregate(v)[..., 0] for _ in range(20)])

    out = layers(weights)
    assert out.dtype == torch.bfloat16
    upstream = torch.ones_like(out)
    upstream[0] = 256
    out.backward(upstream)
    assert torch.equal(weights.grad, torch.full_like(weights, 275.0))
