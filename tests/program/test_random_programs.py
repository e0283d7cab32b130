"""Random functions as programs, compared with torch in double precision."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from dropout_masks import kept_by_hash
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from graphslice import ops
from graphslice.program import function, layout, run
from graphslice.program.function import run_program
from graphslice.program.layout import N
from graphslice.program.run import Program
from graphslice.program.trace import Trace, Traced

CHANNELS, HEADS = 32, 2
# Inputs with samples: three of activations, attention weights and a bias.
INPUTS = {"x": (N, CHANNELS), "y": (N, CHANNELS), "z": (N, CHANNELS), "p": (HEADS, N, N), "b": (HEADS, N, N)}
PARAMETERS = {
    "square": (CHANNELS, CHANNELS), "wide": (3 * CHANNELS, CHANNELS), "narrow": (CHANNELS, 3 * CHANNELS),
    "wide_bias": (3 * CHANNELS,), "weight": (CHANNELS,), "bias": (CHANNELS,), "scales": (2, HEADS, CHANNELS // HEADS),
    "shifts": (2, HEADS, CHANNELS // HEADS),
}  # fmt: skip


@dataclass
class Arguments:
    """Tensors of a function, symbolic or real, and its operations with dropout.

    ``mask`` gives the factors of dropout for real tensors.
    """

    tensors: dict[str, Any]
    lengths: Any
    mask: Callable[[Tensor, float], Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return self.tensors[name]

    def dropout(self, x: Any, p: float) -> Any:
        return F.dropout(x, p) if self.mask is None else x * self.mask(x, p)

    def aggregate(self, v: Any, p: float) -> Any:
        return ops.aggregate(self.p, v, p) if self.mask is None else ops.aggregate(self.p * self.mask(self.p, p), v)

    def attention(self, q: Any, k: Any, v: Any, p: float) -> Any:
        if self.mask is None:
            return ops.attention(q, k, v, self.b, HEADS, p)
        q, k = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (q, k))
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + self.b).softmax(-1)
        return ops.aggregate(weights * self.mask(weights, p), v)


# Functions of the arguments and of two values.
FUNCTIONS: dict[str, Callable[[Arguments, Any, Any], Any]] = {
    "add": lambda args, a, b: a + b,
    "subtract": lambda args, a, b: a - b,
    "multiply": lambda args, a, b: 0.5 * (a * b),
    "multiply by itself": lambda args, a, b: torch.multiply(a, a) * 0.3,
    "subtract from itself": lambda args, a, b: a - a,
    "negate": lambda args, a, b: torch.neg(-2 * a),
    "factor": lambda args, a, b: torch.mul(a, 0.75),
    "gelu": lambda args, a, b: F.gelu(a),
    "linear": lambda args, a, b: F.linear(a, args.square, args.bias),
    "feed forward": lambda args, a, b: F.linear(
        args.dropout(F.gelu(F.linear(a, args.wide, args.wide_bias)), 0.1), args.narrow
    ),
    "norm": lambda args, a, b: F.layer_norm(a, (CHANNELS,), args.weight, args.bias),
    "norm of sum": lambda args, a, b: F.layer_norm(a + b, (CHANNELS,), args.weight, args.bias, 1e-3),
    "norm of dropped sum": lambda args, a, b: F.layer_norm(
        a + args.dropout(b, 0.3), (CHANNELS,), args.weight, args.bias
    ),
    "residual branch": lambda args, a, b: (
        a + F.linear(F.layer_norm(a, (CHANNELS,), args.weight, args.bias), args.square)
    ),
    "block": lambda args, a, b: (
        lambda total: total + F.linear(F.layer_norm(total, (CHANNELS,), args.weight, args.bias), args.square)
    )(a + args.dropout(b, 0.2)),
    "dropout": lambda args, a, b: args.dropout(a, 0.5),
    "dropped sum": lambda args, a, b: args.dropout(a, 0.4) + b,
    "sum of dropped": lambda args, a, b: args.dropout(a, 0.2) + args.dropout(b, 0.6),
    "no dropout": lambda args, a, b: F.dropout(a, 0.5, training=False),
    "aggregate": lambda args, a, b: ops.aggregate(args.p, a),
    "dropped aggregate": lambda args, a, b: args.aggregate(a, 0.25),
    "attention": lambda args, a, b: ops.attention(a, b, a, args.b, HEADS),
    "dropped attention": lambda args, a, b: args.attention(a, b, args.y, 0.3),
    "linear attention": lambda args, a, b: ops.linear_attention(a, b, args.x, args.lengths, HEADS),
    "norm of heads": lambda args, a, b: ops.head_norm(a, args.scales, args.shifts, 1),
    "shared norm of heads": lambda args, a, b: ops.head_norm(a, args.scales, args.scales, 0),
}
# Drawn more often: their gradients are shared, or added to existing ones.
COMMON = ["add", "subtract", "linear", "gelu", "norm", "norm of sum", "norm of dropped sum", "dropped sum"]
READOUTS = {
    "rows": lambda args, x: x,
    "sum of readouts": lambda args, x: F.linear(ops.read_out(x, args.lengths, ("token", "mean", "sum")), args.narrow),
    "contributions": lambda args, x: ops.read_out(args.x, args.lengths, ("atomwise", "max"), x),
    "input and readout": lambda args, x: ops.read_out(x + args.x, args.lengths, ("mean",)),
}


@dataclass
class Function:
    """Sequence of calls, each of two earlier values."""

    calls: list[tuple[str, int, int]]
    readout: str

    def __call__(self, args: Arguments) -> Any:
        values = [args.x, args.y, args.z]
        for name, a, b in self.calls:
            # Count from the last value, so that most values are used.
            values.append(FUNCTIONS[name](args, values[-1 - a % len(values)], values[-1 - b % len(values)]))
        return READOUTS[self.readout](args, values[-1])


@dataclass
class Masks:
    """Dropout masks of a program, from its keys in the order of their use."""

    keys: list[int]
    used: int = 0

    def __call__(self, x: Tensor, p: float) -> Tensor:
        first, second = self.keys[self.used : self.used + 2]
        self.used += 2
        kept = torch.from_numpy(kept_by_hash(x.numel(), first, second, p))
        return kept.view(x.shape).to(x.dtype) / (1 - p)


def trace(traced_function: Callable[[Arguments], Traced], parameters: dict[str, Tensor]) -> Program:
    trace = Trace(backward=True, tensors={id(tensor): (tensor, name) for name, tensor in parameters.items()})
    tensors = {name: trace.input(name, shape) for name, shape in INPUTS.items()}
    lengths = trace.input("lengths", (), torch.int64)
    return trace.finish(traced_function(Arguments(tensors | parameters, lengths)))


def results(out: Tensor, leaves: list[Tensor], upstream: Tensor) -> list[Tensor]:
    used = [leaf for leaf in leaves if leaf.requires_grad]
    if not out.requires_grad:
        return [out.double(), *(torch.zeros_like(leaf).double() for leaf in used)]
    gradients = torch.autograd.grad(out, used, upstream.to(out.dtype), allow_unused=True, materialize_grads=True)
    return [out.detach().double(), *(gradient.double() for gradient in gradients)]


def check(random_function: Callable[[Arguments], Any], seed: int, samples: int, width: int, frozen: set[str]) -> None:
    random = np.random.default_rng(seed)
    real = {
        name: random.normal(size=(samples, *[width if n is N else n for n in shape])) for name, shape in INPUTS.items()
    }
    parameters = {name: random.normal(size=shape) / shape[-1] ** 0.5 for name, shape in PARAMETERS.items()}
    leaves = {
        name: torch.from_numpy(array).float().requires_grad_(name not in frozen)
        for name, array in {**real, **parameters}.items()
    }
    lengths = torch.from_numpy(random.integers(2, width + 1, samples))
    program = trace(random_function, {name: leaves[name] for name in PARAMETERS})

    keys: list[int] = []

    def draw(count: int) -> list[int]:
        keys.extend(random.integers(-(2**31), 2**31, count).tolist())
        return keys

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "draw_random_integers", draw)
        tensors = [lengths if name == "lengths" else leaves[name] for _, _, name in program.inputs]
        out = run_program(program, tensors, samples, width)
    upstream = torch.from_numpy(random.normal(size=out.shape))
    actual = results(out, list(leaves.values()), upstream)

    expected = []
    for dtype in (torch.float64, torch.float32):
        others = {name: leaf.detach().to(dtype).requires_grad_(leaf.requires_grad) for name, leaf in leaves.items()}
        masks = Masks(keys)
        with ops.dispatch.reference_only():
            expected.append(
                results(random_function(Arguments(others, lengths, masks)), list(others.values()), upstream)
            )
        assert masks.used == len(keys)
    for one, exact, rounded in zip(actual, *expected, strict=True):
        scale = float(exact.abs().max()) + 1
        assume(np.isfinite(scale) and scale < 1e6)
        atol = 1e-4 * scale + 30 * float((rounded - exact).abs().max())
        torch.testing.assert_close(one, exact, rtol=1e-4, atol=atol)


@pytest.fixture
def small_groups(monkeypatch):
    """Process few samples at once, so that a program runs for several groups, on up to three cores."""
    monkeypatch.setattr(layout, "_GROUP_ROWS", 8)
    monkeypatch.setattr(run, "_MIN_ROWS", 1)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(
        st.tuples(st.sampled_from(COMMON) | st.sampled_from(sorted(FUNCTIONS)), st.integers(0, 5), st.integers(0, 5)),
        max_size=12,
    ),
    readout=st.sampled_from(sorted(READOUTS)),
    seed=st.integers(0, 2**20),
    shape=st.tuples(st.integers(1, 7), st.integers(2, 9)),
    frozen=st.sets(st.sampled_from([*INPUTS, *PARAMETERS]), max_size=5),
    threads=st.sampled_from([1, 3]),
)
def test_random_functions_match_torch(calls, readout, seed, shape, frozen, threads, small_groups):
    torch.set_num_threads(threads)
    check(Function(calls, readout), seed, *shape, frozen)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_matches_torch(name):
    """Alone, twice in a row, and of one value twice; 30 samples of 9 rows are several groups."""
    for sequence in ([(name, 0, 1)], [(name, 0, 1), (name, 0, 2)], [(name, 0, 0), ("add", 0, 1), ("multiply", 0, 1)]):
        check(Function(sequence, "rows"), 0, 30, 9, set())


def norm(args, x):
    return F.layer_norm(x, (CHANNELS,), args.weight, args.bias)


def linear(args, x):
    return F.linear(x, args.square)


# The summands of a sum share its gradient until another one is added to that of one of them.
SHARED_GRADIENTS = {
    "a linear layer adds to one": lambda args: (lambda b, c: (args.y + b) + c)(F.gelu(args.x), linear(args, args.y)),
    "one is twice in the sum": lambda args: (args.x + args.x) + (args.x + args.y),
    "inputs alone": lambda args: args.x + args.y,
    "an input and a function of it": lambda args: norm(args, args.x + args.y) + F.gelu(args.x),
    "a function of the other input, then the input": lambda args: F.gelu(args.y) + norm(args, args.x + args.y),
    "both inputs and functions of them": lambda args: norm(args, args.x + args.y) + args.x * args.y,
    "a norm of two sums": lambda args: (lambda t: t + norm(args, t) + norm(args, t + args.x))(args.x + args.y),
    "a norm of a value with itself, dropped": lambda args: norm(args, args.x + args.dropout(args.x, 0.5)),
    "a dropped value in three sums": lambda args: (lambda d: (args.x + d) * (args.y + d) + d)(
        args.dropout(args.z, 0.4)
    ),
    "a sum of sums": lambda args: (lambda s, t: (s + t) + linear(args, s) + linear(args, t))(
        args.x + args.y, args.y + args.z
    ),
}


@pytest.mark.parametrize("name", SHARED_GRADIENTS)
def test_sums_that_share_a_gradient_match_torch(name):
    check(SHARED_GRADIENTS[name], 0, 5, 6, set())
