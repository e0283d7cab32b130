"""Invalid shapes and indices: kernels reject them, and the torch reference raises an error."""

import inspect
import itertools

import pytest
import torch

from graphslice.doctor.checks import case_of, is_float, outputs_and_gradients
from graphslice.ops import OPERATORS


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


TABLE, FLAGS = ones(9, 16), torch.ones(16, dtype=torch.bool)
V, P, LENGTHS = ones(2, 3, 16), ones(2, 2, 3, 3) / 3, ints(3, 2)
TYPES = torch.zeros(2, 3, 3, dtype=torch.int16)
SHIFTS = ones(2, 2, 8)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paths(**overrides: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return arguments of path_values for two path types with three entries, with some replaced."""
    arguments = {"token": ones(1, 8), "spatial": ones(4, 8), "bond": ones(5, 8), "matrices": ones(2, 8, 8)}
    arguments |= {"bond_rows": ints(0, 4, 1, 2)[:, None], "distances": int32(1, 2), "offsets": int32(0, 1)}
    return tuple((arguments | {"codes": int32(0, 7, 3), "weights": ones(3)} | overrides).values())


def atoms(channels: int, degrees: int) -> tuple[torch.Tensor, ...]:
    features, counts = torch.zeros(2, 2, 9, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)
    tables = ones(9, channels), ones(degrees, channels), ones(degrees, channels), ones(1, channels)
    return features, counts, LENGTHS, torch.arange(9), *tables


OUT_OF_RANGE = [TYPES + 3, TYPES + torch.eye(3, dtype=torch.int16) * 32_767]

# Values, and changes of several arguments; below every argument is changed alone.
CALLS = {
    "aggregate": [(ones(2, 3, 3, 3), ones(2, 3, 32)), *((P, V, p) for p in (1.0, -0.1, torch.nan))],
    "attention": [(*[ones(2, 3, 32)] * 3, ones(2, 3, 3, 3), 3), (V, V, V, P, 0), (V, V, V, P, 2, 1.0)],
    "linear_attention": [
        (*[ones(2, 3, 32)] * 3, LENGTHS, 3),
        *((V, V, V, LENGTHS, heads) for heads in (-1, 0)),
    ],
    "head_norm": [
        *((V, SHIFTS, SHIFTS, index) for index in (2, -1, 0.5)),
        *((V, shifts, shifts, 0) for shifts in (ones(2, 4, 4), ones(2, 3, 8))),
        (ones(2, 3, 24), ones(2, 3, 8), ones(2, 3, 8), 0),
    ],
    "broadcast_max": [(ones(2, 3, 15), LENGTHS, FLAGS[:15])],
    "sort_by_first": [(V, LENGTHS, 2), (V, LENGTHS, -1)],
    "read_out": [(V, LENGTHS, kinds) for kinds in (("median",), ("max", "quantiles"), ())],
    "bond_messages": [(V[0], TYPES[0], TABLE, TABLE), (V.double(), TYPES, TABLE.double(), TABLE.double())],
    "embed_atoms": [atoms(16, 0), atoms(15, 5)],
    "path_softmax": [(ones(4, 2), types, LENGTHS) for types in OUT_OF_RANGE],
    "path_bias": [(ones(4, 2), types, LENGTHS) for types in OUT_OF_RANGE],
    "path_values": [
        *(paths(codes=int32(0, code, 3)) for code in (8, -1)),
        *(paths(offsets=int32(*offsets)) for offsets in ((1, 2), (0, 4))),
        paths(offsets=int32(0, 2), distances=int32(1, -1)),
        *(paths(bond_rows=ints(0, row, 1, 2)[:, None]) for row in (5, -1)),
        paths(offsets=int32(), distances=int32()),
    ],
    "dropout": [*((V, p) for p in (1.0, 1.5, -0.5, torch.nan, torch.tensor(0.5))), (V[..., :5], 0.5)],
}


#: Calls that only the kernels for a CPU reject.
CPU_CALLS = [
    ("column_sort", (ones(2, 3, 15), LENGTHS)),
    *(("column_sort", args) for args in ((V, 5), (V, LENGTHS, 5), (V, LENGTHS, None))),  # no addresses
    ("read_out", (V, LENGTHS, ("atomwise",), 5)),
    ("bond_messages", (V, TYPES - 1, TABLE, TABLE)),
    ("bond_messages", (V, TYPES + 82, TABLE, TABLE)),
    ("bond_messages", (ones(2, 3, 15), TYPES, ones(9, 15), ones(9, 15))),
]


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]
)
def test_kernel_rejects_invalid_arguments(name, number):
    op, args = OPERATORS[name], CALLS[name][number]
    assert op.choose(*args) == "torch"
    for backend in op.backends:
        with pytest.raises(ValueError, match=f"the {backend} backend of {name} does not support"):
            op.using(backend)(*args)


@pytest.mark.parametrize(("name", "args"), CPU_CALLS)
def test_kernel_for_a_cpu_rejects_invalid_arguments(name, args):
    assert OPERATORS[name].choose(*args) == "torch"
    with pytest.raises(ValueError, match=f"the numba backend of {name} does not support"):
        OPERATORS[name].using("numba")(*args)


DTYPES = [getattr(torch, name) for name in ("float64", "float32", "int64", "int32", "int16", "uint8")]


def changed_arguments(args):
    """Yield arguments of which one tensor has a size, a number of dimensions or a dtype that is changed."""
    for i, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            continue
        changed = [arg[None], arg[..., None], arg.flatten(), arg[0] if arg.dim() and len(arg) else arg]
        for dim, size in enumerate(arg.shape):
            changed += [arg.narrow(dim, 0, rows) for rows in {0, min(1, size), max(0, size - 1)}]
            changed += [torch.cat([arg, arg], dim), arg.transpose(0, dim)]
        for other in changed + [arg.to(dtype) for dtype in DTYPES]:
            if other.shape != arg.shape or other.dtype != arg.dtype:
                yield i, (*args[:i], other, *args[i + 1 :])


@pytest.mark.parametrize("name", OPERATORS)
def test_kernel_rejects_changed_arguments_or_agrees_with_reference(name, monkeypatch):
    op, names = OPERATORS[name], list(inspect.signature(OPERATORS[name]).parameters)
    rejected = dict.fromkeys(op.backends, 0)
    if "triton" in op.backends:  # its interpreter is slow: the reference raises an error for what must be rejected
        monkeypatch.setattr(op.backends["triton"], "function", op.reference)
    for shape, backend in itertools.product(((2, 8, [3, 2]), (4, 8, [2, 2, 2])), op.backends):
        if (backend, shape[0]) == ("triton", 4):  # with a bond code that the kernel clamps
            continue
        case = case_of(name, *shape)
        for i, args in changed_arguments(case.args):
            try:
                actual = op.using(backend)(*args)
            except ValueError as error:
                assert f"the {backend} backend of {name} does not support" in str(error)
                assert op.choose(*args) != backend
                rejected[backend] += 1
                continue
            if (name, names[i]) in (("embed_atoms", "table"), ("read_out", "x")):  # clamps what has no row now
                continue
            expected = op.reference(*args)
            if case.valid is not None:
                actual, expected = (out.masked_fill(~case.valid, 0) for out in (actual, expected))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert min(rejected.values()) > 10


WITH_LENGTHS = [name for name, op in OPERATORS.items() if "lengths" in inspect.signature(op).parameters]
WITH_LENGTHS = [name for name in WITH_LENGTHS if "numba" in OPERATORS[name].backends]


def results(name, backend, args, lengths):
    place = list(inspect.signature(OPERATORS[name]).parameters).index("lengths")
    leaves = [arg.clone().requires_grad_() if is_float(arg) else arg for arg in args]
    return outputs_and_gradients(OPERATORS[name].using(backend), [*leaves[:place], lengths, *leaves[place + 1 :]])


# The reference of read_out divides by the length as it is.
@pytest.mark.parametrize(
    ("name", "backend"), [(n, b) for n in WITH_LENGTHS for b in ("numba", "torch") if (n, b) != ("read_out", "torch")]
)
def test_lengths_are_clamped(name, backend):
    """Otherwise compiled code would access memory beyond its arrays."""
    args = case_of(name, 2, 8, [3, 3, 3, 3, 3]).args
    width = int(next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.shape == (5,))[0])
    changed, clamped = ints(2**62, -(2**62), -1, width + 1, width), ints(width, 0, 0, width, width)
    for one, other in zip(*(results(name, backend, args, lengths) for lengths in (changed, clamped)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


PADDED = ["broadcast_max", "column_sort", "linear_attention", "max_exchange", "read_out", "sort_by_first"]


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("filling", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("name", PADDED)
def test_padding_does_not_reach_results_and_gradients(name, filling, backend):
    op, found = OPERATORS[name], []
    args = case_of(name, 2, 8, [3, 7, 1]).args
    lengths = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.shape == (3,))
    valid = torch.arange(int(lengths.max())) < lengths[:, None]
    for value in (0.5, filling):
        leaves = [arg.masked_fill(~valid[:, :, None], value).requires_grad_() if is_float(arg) else arg for arg in args]
        out = op.using(backend)(*leaves)
        used = out if name == "read_out" else out.masked_fill(~valid[:, :, None], 0)
        gradients = torch.autograd.grad(used.sum(), [leaf for leaf in leaves if is_float(leaf)])
        found.append([used, *(gradient[valid] for gradient in gradients)])
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


def test_every_operator_is_covered():
    assert set(WITH_LENGTHS) - set(PADDED) == {"path_softmax", "path_bias", "embed_atoms"}  # of integers
