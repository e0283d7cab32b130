"""The blocks as one program, against the modules that were recorded, in float64."""

import copy
import pickle

import pytest
import torch
from torch import nn

from graphslice.config import ModelConfig
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.nn.mixers.base import Mixer
from graphslice.nn.recorded import run_recorded
from graphslice.ops import gelu
from graphslice.ops.dispatch import only_references
from graphslice.ops.program import programs_off
from graphslice.ops.threads import torch_on_one_core

DIM, HEADS, LENGTHS = 32, 2, [7, 1, 19, 12, 25]


def model_of(mixer="slice-quantile", **settings) -> GraphTransformer:
    torch.manual_seed(0)
    config = {"layers": 2, "dim": DIM, "heads": HEADS, "ffn_dim": 48, "init": "balanced"}
    config |= {"dropout": 0.0, "attention_dropout": 0.0, **settings}
    model = GraphTransformer(ModelConfig(mixer=mixer, **config))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
    return model


def inputs_of(model, lengths=LENGTHS):
    """Rows, and the lengths with the tensor of the graph that the mixers read."""
    torch.manual_seed(1)
    sizes, width = torch.tensor(lengths), max(lengths)
    bias = torch.randn(len(lengths), HEADS, width, width)
    bias = bias.masked_fill(torch.arange(width) >= sizes[:, None, None, None], -torch.inf)
    weights = "attn_weights" in model.blocks[0].mixer.reads
    graph = {"attn_weights": bias.softmax(-1)} if weights else {"attn_bias": bias}
    return torch.randn(len(lengths), width, DIM), {"lengths": sizes, **graph}


def recorded(model, x, tensors):
    return run_recorded(model, model.blocks, model.norm, HEADS, x, tensors)


def compared(model, x, tensors):
    """What a function of both makes of the rows: the result and all gradients, 0 in the padding."""
    valid = (torch.arange(x.shape[1]) < tensors["lengths"][:, None])[:, :, None]
    generator = torch.Generator().manual_seed(2)
    upstream = torch.randn(x.shape, generator=generator) * valid

    def results(model, run, dtype):
        leaf = x.to(dtype).requires_grad_()
        own = {name: t.to(dtype).requires_grad_() if name != "lengths" else t for name, t in tensors.items()}
        out = run(model, leaf, own)
        parameters = [p for name, p in model.named_parameters() if name.startswith(("blocks", "norm"))]
        leaves = [leaf, *(t for name, t in own.items() if name != "lengths"), *parameters]
        grads = torch.autograd.grad(out, leaves, upstream.to(dtype), allow_unused=True, materialize_grads=True)
        return [out * valid, *grads]

    found = results(model, recorded, torch.float32)
    expected = results(copy.deepcopy(model).double(), lambda m, x, t: m.run_blocks(x, t), torch.float64)
    return found, expected


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_program_is_the_modules(mixer, norm):
    model = model_of(mixer, norm=norm)
    x, tensors = inputs_of(model)
    for one, other in zip(*compared(model, x, tensors), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-5)
    with torch.inference_mode():
        alone = recorded(model, x, tensors)
        torch.testing.assert_close(alone, recorded(model.eval(), x, tensors), rtol=0, atol=0)
        valid = torch.arange(x.shape[1]) < tensors["lengths"][:, None]
        torch.testing.assert_close(alone[valid], model.run_blocks(x, tensors)[valid], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [[1], [2, 2], [256], [3] * 100])
def test_of_any_sizes(lengths):
    model = model_of("galerkin")
    x, tensors = inputs_of(model, lengths)
    for one, other in zip(*compared(model, x, tensors), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


def test_a_half_in_another_mode():
    model = model_of(dropout=0.5).eval()
    model.blocks[0].train()
    x, tensors = inputs_of(model)
    assert not torch.equal(recorded(model, x, tensors), recorded(model, x, tensors))
    model.blocks[0].eval()
    assert torch.equal(recorded(model, x, tensors), recorded(model, x, tensors))


def test_a_sample_does_not_depend_on_the_others():
    model = model_of("softmax")
    x, tensors = inputs_of(model)
    with torch.inference_mode():
        together = recorded(model, x, tensors)
        one = recorded(model, x[2:3], {name: tensor[2:3] for name, tensor in tensors.items()})
    torch.testing.assert_close(one[0], together[2], rtol=0, atol=0)


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_several_cores_give_the_same(mixer, three_threads):
    rates = {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}
    model = model_of(mixer, **rates)
    x, tensors = inputs_of(model, [20] * 12)

    def step():
        torch.manual_seed(5)
        leaf = x.clone().requires_grad_()
        out = recorded(model, leaf, tensors)
        return out, *torch.autograd.grad(out.square().sum(), [leaf, *model.blocks.parameters()])

    first, again = step(), step()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    with torch_on_one_core():
        assert torch.get_num_threads() == 1
        assert all(torch.equal(one, other) for one, other in zip(first, step(), strict=True))
    torch.set_num_threads(1)
    for one, other in zip(first, step(), strict=True):  # sums of gradients in another order
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("mixer", ["map-only", "softmax"])
def test_gradients_with_dropout_are_those_of_finite_differences(mixer, rate):
    model = model_of(mixer, **{rate: 0.3})
    x, tensors = inputs_of(model)
    valid = (torch.arange(x.shape[1]) < tensors["lengths"][:, None])[:, :, None]
    along, upstream = torch.randn(2, *x.shape) * valid

    def total(rows):
        torch.manual_seed(3)
        return (recorded(model, rows, tensors) * upstream).double().sum()

    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(total(leaf), leaf)
    with torch.no_grad():
        slope = (total(x + 3e-3 * along) - total(x - 3e-3 * along)) / 6e-3
        assert total(x) != (recorded(model.eval(), x, tensors) * upstream).double().sum()
    assert slope.item() == pytest.approx((grad * along).sum().item(), rel=0.02, abs=0.05)


def test_frozen_parameters_have_no_gradient():
    model = model_of()
    model.blocks[0].requires_grad_(False)
    x, tensors = inputs_of(model)
    recorded(model, x, tensors).sum().backward()
    assert all(p.grad is None for p in model.blocks[0].parameters())
    assert all(p.grad is not None for p in model.blocks[1].parameters())


def test_backward_runs_once():
    model = model_of()
    x, tensors = inputs_of(model)
    out = recorded(model, x, tensors).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already"):
        out.backward()


def test_what_is_changed_afterwards_counts():
    model = model_of().eval()
    x, tensors = inputs_of(model)
    valid = torch.arange(x.shape[1]) < tensors["lengths"][:, None]

    def same():
        with torch.inference_mode():
            found = recorded(model, x, tensors)
            if found is not None:
                torch.testing.assert_close(found[valid], model.run_blocks(x, tensors)[valid], rtol=1e-4, atol=1e-5)
        return found is not None

    assert same()
    model.blocks[0].ffn.expand.weight = nn.Parameter(torch.randn(48, DIM))
    assert same()
    model.blocks[1].mixer_norm.eps = 3.0
    assert same()
    model.blocks[1].mixer.output = nn.Linear(DIM, DIM)
    assert same()
    model.blocks[0] = model_of("slice-max").blocks[0].eval()
    assert same()
    model.blocks[0].ffn.activation = nn.ReLU()
    assert not same()


def unwatched(model):
    pass


def with_a_hook(model):
    model.blocks[1].ffn.register_forward_hook(lambda *args: None)


def another_mix(model):
    class Mine(type(model.blocks[0].mixer)):
        def mix(self, x, context):
            return x

    model.blocks[0].mixer.__class__ = Mine


def without_a_bias(model):
    model.blocks[0].ffn.contract.bias = None


@pytest.mark.parametrize("change", [with_a_hook, another_mix, without_a_bias, unwatched])
@pytest.mark.parametrize("early", [False, True])
def test_what_no_tape_knows_runs_as_modules(change, early):
    model = model_of()
    x, tensors = inputs_of(model)
    if not early:
        assert recorded(model, x, tensors) is not None
    change(model)
    assert (recorded(model, x, tensors) is None) == (change is not unwatched)


def test_where_programs_are_not_wanted():
    model = model_of()
    x, tensors = inputs_of(model)
    with programs_off():
        assert recorded(model, x, tensors) is None
    with only_references():
        assert recorded(model, x, tensors) is None
    with only_references(but=(gelu, "numba")):
        assert recorded(model, x, tensors) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert recorded(model, x, tensors) is None
    assert recorded(model, x.double(), tensors) is None
    assert recorded(model_of(ffn_dim=40), x, tensors) is None
    assert recorded(copy.deepcopy(model).double(), x, tensors) is None
    assert recorded(model, x[:0], {name: tensor[:0] for name, tensor in tensors.items()}) is None
    assert recorded(model, x, tensors) is not None


def test_a_model_that_ran_is_copied_and_sent():
    model = model_of()
    x, tensors = inputs_of(model)
    before = recorded(model, x, tensors)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            next(other.blocks.parameters()).zero_()
        assert not torch.equal(recorded(other, x, tensors), before)
    assert torch.equal(recorded(model, x, tensors), before)


def test_every_mixer_is_recorded_as_it_is_by_default():
    assert all("record_mix" in cls.__dict__ and cls.recorded is cls.mix for cls in MIXERS.values())
    assert Mixer.recorded is None
