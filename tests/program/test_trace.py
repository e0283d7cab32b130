"""Tracing of functions: what becomes one kernel, and what cannot be traced.

test_random_programs.py compares the values and gradients of every rule with torch.
"""

import operator

import pytest
import torch
from torch.nn import functional as F

from graphslice import ops
from graphslice.program.layout import ATOMS, N, NotTraceable
from graphslice.program.run import Program
from graphslice.program.trace import BATCH, Trace, Traced

PARAMETERS = {
    "square": torch.randn(16, 16), "vector": torch.randn(16), "scalar": torch.ones(()),
    "double": torch.randn(16).double(), "transposed": torch.randn(32, 16).T,
    "integers": torch.ones(16, 16, dtype=torch.int64), "flags": torch.ones(16, dtype=torch.bool),
    "nine": torch.arange(9), "two_lengths": torch.tensor([3, 2]), "empty": torch.zeros(0, 16),
    "token": torch.zeros(1, 16), "nine_rows": torch.randn(9, 16),
}  # fmt: skip


class Arguments:
    """Symbolic arguments of a function, and the parameters by name."""

    def __init__(self, backward: bool = True) -> None:
        known = {id(tensor): (tensor, name) for name, tensor in PARAMETERS.items()}
        self.trace = Trace(backward=backward, tensors=known)
        self.x, self.y = self.trace.input(0, (N, 16)), self.trace.input(1, (N, 16))
        self.wide, self.one = self.trace.input(2, (N, 32)), self.trace.input(3, (16,))
        self.odd, self.p = self.trace.input(4, (N, 5)), self.trace.input(5, (2, N, N))
        self.lengths = self.trace.input(6, (), torch.int64)
        self.pairs = self.trace.input(7, (ATOMS, ATOMS), torch.int16)
        self.atoms = self.trace.input(8, (ATOMS, 9), torch.uint8)
        self.values = self.trace.input(9, (None, 2), shared=True)

    def __getattr__(self, name: str) -> torch.Tensor:
        return PARAMETERS[name]


def kernels_of(program: Program) -> tuple[list[str], list[str]]:
    """Return the names of the kernels of the forward and the backward pass."""
    return tuple([kernel.__name__ for kernel, _ in part.instructions] for part in (program._forward, program._backward))


def trace(function, backward: bool = True) -> tuple[list[str], list[str]]:
    args = Arguments(backward)
    return kernels_of(args.trace.finish(function(args)))


UNKNOWN_FUNCTIONS = {
    "function": lambda a: torch.sin(a.x), "method": lambda a: a.x.sin(), "attribute": lambda a: a.x.T,
    "list of tensors": lambda a: torch.cat([a.x, a.y], dim=-1),
    "keyword": lambda a: torch.where(condition=a.x, input=a.x, other=a.y),
    "index": lambda a: a.x[:, 0], "operator of a parameter": lambda a: a.square @ a.x,
    "GELU by tanh": lambda a: F.gelu(a.x, approximate="tanh"),
    "dropout in place": lambda a: F.dropout(a.x, 0.5, inplace=True), "dropout of all": lambda a: F.dropout(a.x, 1.0),
    "norm over two dimensions": lambda a: F.layer_norm(a.x, (2, 16), a.square, a.square),
    "norm without parameters": lambda a: F.layer_norm(a.x, (16,)),
    "quantiles": lambda a: ops.read_out(a.x, a.lengths, ("quantiles",)),
    "groups": lambda a: ops.sort_by_first(a.x, a.lengths, 2),
    "order": lambda a: ops.column_sort(a.x, a.lengths, "up"), "number as result": lambda a: 1.0,
    "parameter as result": lambda a: a.square, "tuple as result": lambda a: (a.x, a.y),
    "integers as result": lambda a: a.lengths,
}  # fmt: skip
CONTROL_FLOW = {
    "number of rows": lambda a: a.x if a.x.shape[1] > 3 else a.y,
    "number of samples": lambda a: a.x if a.x.shape[0] > 3 else a.y,
    "exact number of samples": lambda a: a.x if a.x.shape[0] != 1 else a.y,
    "length": lambda a: a.x if len(a.x) > 1 else a.y,
    "iteration": lambda a: next(iter(a.x)),
    "value": lambda a: a.x if a.x else a.y,
    "comparison": lambda a: a.x if a.x > 0 else a.y,
    "comparison of numbers": lambda a: a.x * (a.lengths == 3),
    "number": lambda a: float(a.x) * a.y,
    "element": lambda a: a.x[0],
}
IN_PLACE = {
    "sum": lambda a: operator.iadd(a.x, a.y),
    "element": lambda a: operator.setitem(a.x, 0, 1.0),
    "method": lambda a: a.x.add_(a.y),
}
TENSORS = {
    "new tensor": lambda a: F.linear(a.x, torch.ones(16, 16)),
    "copy of a parameter": lambda a: F.linear(a.x, a.square.clone()),
    "strided parameter": lambda a: F.linear(a.x, a.transposed),
    "float64 norm": lambda a: F.layer_norm(a.x, (16,), a.double, a.vector),
    "integers as weight": lambda a: F.linear(a.x, a.integers),
    "flags as bias": lambda a: F.linear(a.x, a.square, a.flags),
    "lengths of other samples": lambda a: ops.max_exchange(a.x, a.two_lengths),
    "float32 flags": lambda a: ops.broadcast_max(a.x, a.lengths, a.vector),
    "flags as order of the wrong size": lambda a: ops.column_sort(a.wide, a.lengths, a.flags),
    "weights per sample": lambda a: F.linear(a.x, a.one),
    "table per sample": lambda a: ops.path_softmax(a.one, a.pairs, a.lengths),
    "table as pairs": lambda a: ops.path_softmax(a.values, a.integers, a.lengths),
    "empty table": lambda a: ops.embed_atoms(
        a.atoms, a.trace.input(10, (ATOMS,), torch.uint8), a.lengths, a.nine, a.empty, a.square, a.square, a.token
    ),
    "scalar parameter": lambda a: a.x * a.scalar,
    "parameter plus tensor": lambda a: a.vector + a.x,
    "no tensor": lambda a: ops.max_exchange(a.x, None),
}
SIZES = {
    "inputs of a linear layer": lambda a: F.linear(a.wide, a.square),
    "outputs of a linear layer": lambda a: F.linear(a.x, a.nine_rows),
    "channels of a norm": lambda a: F.layer_norm(a.wide, (16,), a.vector, a.vector),
    "weight of a norm": lambda a: F.layer_norm(a.wide, (32,), a.vector, a.vector),
    "channels of a sum": lambda a: a.x + a.wide,
    "rows of a sum": lambda a: a.x + a.one,
    "channels of a product": lambda a: a.x * a.wide,
    "odd channels": lambda a: F.gelu(a.odd),
    "channels that are rows": lambda a: F.gelu(a.p),
    "rows of attention weights": lambda a: ops.aggregate(a.p, a.one),
    "heads of attention": lambda a: ops.attention(a.x, a.x, a.x, a.p, 4),
    "narrow heads": lambda a: ops.linear_attention(a.x, a.x, a.x, a.lengths, 4),
    "queries": lambda a: ops.attention(a.wide, a.x, a.x, a.p, 2),
}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=f"{group}: {name}")
        for group, functions in {
            "unknown": UNKNOWN_FUNCTIONS,
            "control flow": CONTROL_FLOW,
            "in place": IN_PLACE,
            "tensor": TENSORS,
            "size": SIZES,
        }.items()
        for name, function in functions.items()
    ],
)
def test_not_traceable(function):
    with pytest.raises(NotTraceable):
        trace(function)


def test_symbolic_tensors_have_shape_dtype_and_device():
    a = Arguments()
    assert a.x.shape == (BATCH, N, 16) and a.x.dim() == 3 and a.values.dim() == 2
    assert a.x.dtype == torch.float32 and a.lengths.dtype == torch.int64 and a.pairs.dtype == torch.int16
    assert a.x.device.type == "cpu" and not a.x.is_cuda
    assert isinstance(a.x, torch.Tensor) and isinstance(a.x, Traced) and not isinstance(a.x, float)
    assert a.x.to(torch.float32) is a.x and a.x.contiguous() is a.x
    with pytest.raises(NotTraceable, match="float16"):
        a.x.to(torch.float16)


def test_a_parameter_is_one_input_however_often_it_is_used():
    args = Arguments()
    out = F.linear(F.linear(args.x, args.square), args.square, args.vector)
    program = args.trace.finish(F.layer_norm(out, (16,), args.vector, args.vector))
    names = [source for _, _, source in program.inputs if isinstance(source, str)]
    assert names == ["square", "vector"]


def norm(a: Arguments, x: Traced) -> Traced:
    return F.layer_norm(x, (16,), a.vector, a.vector)


@pytest.mark.parametrize(
    ("function", "forward"),
    [
        (lambda a: norm(a, a.x + a.y), ["add_norm"]),
        (lambda a: norm(a, a.x + F.dropout(a.y, 0.5)), ["add_norm"]),
        (lambda a: norm(a, ops.dropout(a.x, 0.5) + a.y), ["add_norm"]),
        (lambda a: norm(a, a.x + F.dropout(a.y, 0.5, training=False)), ["add_norm"]),
        (lambda a: norm(a, F.dropout(a.x, 0.5) + F.dropout(a.y, 0.5)), ["dropout", "add_norm"]),
        (lambda a: norm(a, F.dropout(a.x, 0.5)), ["dropout", "add_norm"]),
        (lambda a: norm(a, a.x - a.y), ["scale", "add_norm"]),
        (lambda a: norm(a, a.x + a.y + a.x), ["add", "add_norm"]),
        (lambda a: a.x + F.dropout(a.y, 0.5), ["dropout", "add"]),
        (lambda a: a.x, ["scale"]),  # a copy
        (lambda a: (lambda s: norm(a, s) + s)(a.x + a.y), ["add_norm", "add"]),
        (lambda a: (lambda s: norm(a, s) + norm(a, s))(a.x + a.y), ["add_norm", "add_norm", "add"]),
        (lambda a: (lambda s: F.gelu(s) + s)(a.x + a.y), ["add", "gelu", "add"]),
        (lambda a: (lambda s: F.gelu(s) + norm(a, s))(a.x + a.y), ["add", "gelu", "add_norm", "add"]),
    ],
)
def test_sums_and_dropout_are_fused_into_the_layer_norm(function, forward):
    found, backward = trace(function)
    assert found == forward
    assert backward.count("add_norm_gradients") == forward.count("add_norm")
    assert trace(function, backward=False) == (forward, [])


def test_a_pre_norm_block_has_no_separate_sums():
    def block(a, x):
        x = x + F.dropout(F.linear(norm(a, x), a.square), 0.1)
        return x + F.dropout(F.linear(F.gelu(F.linear(norm(a, x), a.square)), a.square), 0.1)

    forward, backward = trace(lambda a: norm(a, block(a, block(a, a.x))))
    assert forward == ["add_norm", *["linear", "add_norm", "linear", "gelu", "linear", "add_norm"] * 2]
    # Before the first norm, that of the input, every gradient is written by one kernel.
    assert backward[:12] == [
        "add_norm_gradients",
        *["linear_gradients", "gelu_gradient", "linear_gradients", "add_norm_gradients", "linear_gradients"],
        "add_norm_gradients",
        *["linear_gradients", "gelu_gradient", "linear_gradients", "add_norm_gradients", "linear_gradients"],
    ]
