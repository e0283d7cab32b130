"""What a mixer reads of a batch."""

import pytest
import torch
from mixer_samples import HEADS, graph_context, sample

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.collate import collate
from graphslice.nn import GraphTransformer
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import MIXERS, Mixer, register


def test_the_columns_of_the_padding_are_closed():
    _, bias = sample(5, batch=2)
    context = graph_context(bias, [5, 3])
    expected = torch.softmax(bias[1, :, :3, :3], dim=-1)
    torch.testing.assert_close(context.attn_weights[1, :, :3, :3], expected)
    assert context.attn_weights[1, :, :, 3:].abs().max() == 0
    torch.testing.assert_close(context.attn_weights.sum(-1), torch.ones(2, HEADS, 5, dtype=torch.float64))
    assert context.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert AttentionContext(torch.tensor([2]), 4).attn_weights is None


def test_weights_and_bias_are_rounded_each_by_itself():
    """One copy of each, whichever is asked for first."""
    _, bias = sample(5, batch=2)
    for first in ("attn_weights", "attn_bias"):
        context = AttentionContext.from_bias(torch.tensor([5, 3]), bias.float())
        for name in (first, "attn_weights", "attn_bias", first):
            tensor = getattr(context, name)
            assert torch.equal(context.cast(tensor, torch.bfloat16), tensor.to(torch.bfloat16))
    plain = AttentionContext(torch.tensor([5, 3]), 5)
    assert plain.cast(plain.attn_bias, torch.bfloat16)[1, 0, 0].isinf().tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("name", ["attn_weights", "attn_bias"])
def test_what_was_not_declared_cannot_be_read(name):
    _, bias = sample(5)
    other = {"attn_weights": "attn_bias", "attn_bias": "attn_weights"}[name]
    context = AttentionContext.from_bias(torch.tensor([5]), bias, reads=[other])
    assert getattr(context, other) is not None
    with pytest.raises(RuntimeError, match=f"reads {name} without declaring it: add '{name}' to `reads`"):
        getattr(context, name)


def test_a_mixer_that_reads_what_it_did_not_declare_is_named(monkeypatch):
    """In a model it would otherwise mix V without its graph, and learn nothing of the bonds."""
    monkeypatch.setattr("graphslice.nn.mixers.base.MIXERS", dict(MIXERS))

    @register("forgetful")
    class Forgetful(Mixer):
        def mix(self, x, context):
            return context.aggregate(x)

    model = GraphTransformer(ModelConfig(mixer="forgetful", layers=1, dim=16, heads=2))
    with pytest.raises(RuntimeError, match="forgetful reads attn_weights without declaring it"):
        model(collate([smiles_to_graph("CCO")]))


def test_a_mixer_cannot_declare_what_there_is_not():
    with pytest.raises(TypeError, match="`reads` of Wrong has 'map': choose from attn_weights, attn_bias"):

        class Wrong(Mixer):
            reads = ("map",)


@pytest.mark.parametrize(("mixer", "expected"), [("softmax", "attn_bias"), ("slice-max", "attn_weights")])
def test_only_what_the_mixers_declare_is_made(mixer, expected):
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=1, dim=16, heads=2))
    assert set(model.context(collate([smiles_to_graph("CCO")])).tensors()) == {"lengths", expected}


def test_without_a_graph_the_weights_are_the_identity():
    v = torch.randn(1, 3, 4)
    assert torch.equal(AttentionContext(torch.tensor([2]), 3).aggregate(v), v)


def test_without_a_graph_the_bias_closes_the_padding():
    assert AttentionContext(torch.tensor([2]), 3).attn_bias.tolist() == [[[[0.0, 0.0, -torch.inf]]]]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_the_weights_add_up_in_their_own_precision(compiled):
    """Of 300 layers in bfloat16, whose sums of ones stop at 256."""
    weights = torch.full((1, 1, 2, 2), 0.5, requires_grad=True)
    v = torch.ones(1, 2, 8, dtype=torch.bfloat16)

    def layers(weights):
        context = AttentionContext(torch.tensor([2]), 2, attn_weights=weights)
        return torch.stack([context.aggregate(v)[..., 0] for _ in range(300)])

    run = torch.compile(layers, backend="aot_eager", fullgraph=True) if compiled else layers
    out = run(weights)
    assert out.dtype == torch.bfloat16
    out.backward(torch.ones_like(out))
    assert torch.equal(weights.grad, torch.full_like(weights, 300.0))
