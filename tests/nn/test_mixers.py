"""Properties of all mixers: padding, equivariance, gradients, dropout and settings."""

import pytest
import torch
from mixer_samples import DIM, HEADS, context_of, graph_context, mixer_of, sample

from graphslice import InputError
from graphslice.nn.mixers import MIXERS, Mixer, build_mixer, check_mixer, register

NAMES = sorted(MIXERS)
TWO = ["slice-quantile", "softmax"]
EQUIVARIANT = {"softmax", "slice-max", "galerkin", "fourier", "slice-quantile", "map-only", "csp"}


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_the_output(name, graph):
    mixer, lengths, width = mixer_of(name, layer=1, layers=3), [4, 9, 1], 9
    x, bias = sample(width, batch=3)
    for row, length in enumerate(lengths):
        x[row, length:] = 1e3 * (-1) ** row
        bias[row, :, length:] = bias[row, :, :, length:] = 50.0
    batch_output = mixer(x, context_of(lengths, width, bias if graph else None))
    assert batch_output.shape == x.shape
    for row, n in enumerate(lengths):
        own_bias = bias[row : row + 1, :, :n, :n] if graph else None
        alone = mixer(x[row : row + 1, :n], context_of([n], n, own_bias))
        torch.testing.assert_close(batch_output[row : row + 1, :n], alone, rtol=1e-9, atol=1e-9)


def test_equivariant_mixers():
    assert {name for name in NAMES if mixer_of(name).equivariant} >= EQUIVARIANT


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_rows_permutes_the_output_of_equivariant_mixers(name):
    mixer = mixer_of(name, layer=1, layers=3)
    x, bias = sample(9, seed=1)
    x[0, 3] = x[0, 6]  # equal rows stay equal
    new = torch.cat(
        [torch.zeros(1, dtype=torch.long), 1 + torch.randperm(8, generator=torch.Generator().manual_seed(2))]
    )
    before = mixer(x, graph_context(bias))
    after = mixer(x[:, new], graph_context(bias[:, :, new][:, :, :, new]))
    if mixer.equivariant:
        torch.testing.assert_close(after, before[:, new], rtol=1e-9, atol=1e-9)
    elif name.startswith("slice"):
        assert (after - before[:, new]).abs().max() > 0.05


@pytest.mark.parametrize("name", TWO)
def test_gradients_reach_every_input(name):
    mixer = mixer_of(name, layer=2, layers=3)
    x, bias = (tensor.requires_grad_() for tensor in sample(7, batch=2))
    out = mixer(x, graph_context(bias, [7, 5]))
    (out[0].sum() + (out[1, :5] * torch.arange(DIM)).square().sum()).backward()
    for what, tensor in {"x": x, "bias": bias, **dict(mixer.named_parameters())}.items():
        assert tensor.grad.isfinite().all(), what
        if what != "key.bias":  # adds the same to a whole row of scores
            assert tensor.grad.abs().max() > 1e-6, what
    assert x.grad[1, 5:].abs().max() == 0  # the padding gets none


@pytest.mark.parametrize("name", TWO)
def test_attention_dropout_acts_only_in_training(name):
    torch.manual_seed(0)
    mixer = build_mixer(name, DIM, HEADS, dropout=0.5).double()
    x, bias = sample(7)
    once, again = (mixer.train()(x, graph_context(bias)) for _ in range(2))
    assert not torch.allclose(once, again)
    once, again = (mixer.eval()(x, graph_context(bias)) for _ in range(2))
    assert torch.equal(once, again)


def test_unknown_name_and_indivisible_heads_are_rejected():
    with pytest.raises(InputError, match=r"did you mean 'slice-max'"):
        build_mixer("slice-mx", DIM, HEADS)
    for heads in (5, 0):
        with pytest.raises(InputError, match=rf"heads .{heads}. must divide"):
            build_mixer("softmax", DIM, heads)


@pytest.mark.parametrize(
    ("mixer", "own", "message"),
    [
        ("csp", {"group": 2}, "no setting 'group'.*groups"),
        ("softmax", {"groups": 2}, "it has none"),
        ("csp", {"groups": True}, "groups of mixer csp must be of type int, not True"),
        ("slice-quantile", {"keep_fraction": "half"}, "must be of type float"),
    ],
)
def test_unknown_settings_and_wrong_types_are_rejected(mixer, own, message):
    with pytest.raises(InputError, match=message):
        check_mixer(mixer, own)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("csp", {"groups": -1}, "at least 0"),
        ("slice-max", {"exchange": "had"}, "did you mean 'hard'"),
        ("slice-quantile", {"keep_fraction": 2.0}, "from 0 to 1"),
    ],
)
def test_invalid_values_of_settings_are_rejected(name, own, message):
    with pytest.raises(InputError, match=message):
        build_mixer(name, 12, 3, **own)


def test_setting_without_a_type_is_rejected_at_registration(monkeypatch):
    monkeypatch.setattr("graphslice.nn.mixers.base.MIXERS", dict(MIXERS))
    message = "setting 'gain' of Untyped needs a type annotation, one of int, float, bool, str"
    with pytest.raises(TypeError, match=message):

        @register("untyped")
        class Untyped(Mixer):
            def __init__(self, dim, heads, *, gain=0.0, **settings):
                super().__init__(dim, heads, **settings)
