"""Programs as functions of torch tensors: gradients, memory layouts, modes of torch, operators."""

import gc
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from graphslice import ops
from graphslice.program.function import OperatorProgram, draw_random_integers, run_program
from graphslice.program.layout import N
from graphslice.program.trace import Trace


def make_program(function, count: int = 2, backward: bool = True):
    """Trace a function of values ``[B, N, 16]`` and of a shared weight ``[16, 16]``."""
    trace = Trace(backward=backward)
    values = [trace.input(i, (N, 16)) for i in range(count)]
    return trace.finish(function(*values, trace.input(count, (16, 16), shared=True)))


def layer(x, y, weight):
    """Compute a function in which all arguments have a gradient that depends on the others."""
    return F.gelu(F.linear(x * y, weight)) + x


def tensors(batch: int = 3, width: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, width, 16), (batch, width, 16), (16, 16)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def run_layer(*arguments: Tensor) -> Tensor:
    backward = torch.is_grad_enabled() and any(argument.requires_grad for argument in arguments)
    return run_program(make_program(layer, backward=backward), arguments, *arguments[0].shape[:2])


def assert_gradients_match(arguments: list[Tensor]) -> None:
    results = []
    for function in (run_layer, layer):
        out = function(*arguments)
        used = [argument for argument in arguments if argument.requires_grad]
        results.append([out, *torch.autograd.grad(out, used, torch.ones_like(out))])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_matches_torch(batch):
    assert_gradients_match(tensors(batch))


@pytest.mark.parametrize("frozen", [{0}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_inputs_without_gradients(frozen):
    """A program that was traced for all gradients serves whatever is frozen later."""
    arguments = [t.detach() if i in frozen else t for i, t in enumerate(tensors())]
    out = run_program(make_program(layer), arguments, 3, 4)
    torch.testing.assert_close(out, layer(*arguments), rtol=1e-5, atol=1e-5)
    assert out.requires_grad == run_layer(*arguments).requires_grad == (len(frozen) < 3)
    if out.requires_grad:
        assert_gradients_match(arguments)
        out.sum().backward()
        assert [t.grad is None for t in arguments] == [i in frozen for i in range(3)]


def test_upstream_gradient_is_not_changed():
    """Nor where the result is used by operations that nothing depends on."""

    def function(x, y, weight):
        out = F.gelu(x)
        F.linear(out, weight)
        F.layer_norm(out + y, (16,), *[y.trace.input(i, (16,), shared=True) for i in (3, 4)])
        return out

    arguments = [*tensors(), torch.ones(16), torch.ones(16)]
    arguments[2] = torch.full((16, 16), torch.inf, requires_grad=True)
    upstream = torch.randn(3, 4, 16)
    before = upstream.clone()
    run_program(make_program(function), arguments, 3, 4).backward(upstream)
    assert torch.equal(upstream, before)


def test_results_that_are_arguments_are_copied():
    x, y, weight = tensors()
    out = run_program(make_program(lambda x, y, weight: x), [x, y, weight], 3, 4)
    assert torch.equal(out, x) and out.data_ptr() != x.data_ptr()
    out.backward(upstream := torch.randn(out.shape))
    assert torch.equal(x.grad, upstream) and not y.grad.any() and weight.grad is None


def test_second_backward_raises():
    out = run_layer(*tensors()).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="already computed: sum the losses"):
        out.backward()


def test_arguments_changed_before_the_backward_pass_raise():
    arguments = tensors()
    out = run_layer(*arguments)
    with torch.no_grad():
        arguments[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_values_are_freed_with_the_result():
    for backward in (True, False):
        out = run_layer(*tensors())
        state = weakref.ref(out.grad_fn.state.kept)
        if backward:
            out.sum().backward()
        else:
            del out
            gc.collect()
        assert state() is None


def test_random_integers_follow_the_seed_of_torch():
    torch.manual_seed(0)
    first = draw_random_integers(4000)
    torch.manual_seed(0)
    assert draw_random_integers(4000) == first != draw_random_integers(4000)
    assert all(-(2**31) <= number < 2**31 for number in first) and min(first) < -(2**30) and max(first) > 2**30


def test_shapes_of_operators():
    def reference(x, table, types, flags=None, p=0.0):
        raise AssertionError

    program = OperatorProgram(
        reference,
        lambda trace, x, table, types, flags=None, p=0.0: x,
        {"x": "B N C", "table": "* C", "types": "B A A int16", "flags": "3 bool"},
        lambda x, table, types, flags, p: p < 1,
    )
    x, table, types = torch.randn(2, 4, 16), torch.randn(7, 16), torch.zeros(2, 3, 3, dtype=torch.int16)
    flags = torch.ones(3, dtype=torch.bool)
    supported = [(x, table, types, *rest) for rest in ((), (flags,), (None, 0.5))]
    supported += [(x, table[:1], types), (torch.randn(2, 1, 16), table, types[:, :0, :0])]
    others = (None, 1.0), (flags, 0.5, 1), (flags[:2],), (flags[None],), (flags, torch.tensor(0.5))
    rejected = [(x, table), *((x, table, types, *rest) for rest in others)]
    rejected += [(other, table, types) for other in (x.double(), x[0])]
    rejected += [(x, other, types) for other in (table[:, :8], table.double())]
    rejected += [(x, table, other) for other in (None, types.int(), types[:1], types[:, :2])]
    assert all(program.supports(*args) for args in supported)
    assert not any(program.supports(*args) for args in rejected)
    assert program.supports(types=types, p=0.1, x=x, table=table)
    assert not program.supports(x, table, types, q=0.1) and not program.supports(x, types=types)
    torch.testing.assert_close(program(x, table, types), x)


@pytest.mark.parametrize("shape", [(16,), (2, 8), (4, 2, 2), (1000, 16)])
def test_operators_of_any_shape(shape):
    x = torch.randn(shape).requires_grad_()
    for leaf in (x, x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()):
        actual, upstream = ops.dropout.using("numba")(leaf, 0.5), torch.randn(shape)
        assert actual.shape == leaf.shape
        factors = 2.0 * (actual != 0).detach()
        torch.testing.assert_close(actual, leaf * factors)
        torch.testing.assert_close(torch.autograd.grad(actual, leaf, upstream)[0], upstream * factors)
