"""Invalid shapes and indices: kernels reject them, and the torch reference raises an error."""

from __future__ import annotations

import inspect

import pytest
import torch

from graphslice.doctor.operator_cases import TYPICAL
from graphslice.doctor.operators import is_float, outputs_and_gradients
from graphslice.ops import OPERATORS


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


TABLE, FLAGS = ones(9, 16), torch.ones(16, dtype=torch.bool)
V, P, LENGTHS = ones(2, 3, 16), ones(2, 2, 3, 3) / 3, ints(3, 2)
TYPES = torch.zeros(2, 3, 3, dtype=torch.int16)
BONDS = torch.zeros(2, 3, 3, dtype=torch.int16)
SHIFTS = ones(2, 2, 8)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def paths(**overrides: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return arguments of path_values for two path types with three entries, with some replaced."""
    arguments = {
        "token": ones(1, 8),
        "spatial": ones(4, 8),
        "bond": ones(5, 8),
        "matrices": ones(2, 8, 8),
        "bond_rows": ints(0, 4, 1, 2)[:, None],
        "distances": int32(1, 2),
        "offsets": int32(0, 1),
        "codes": int32(0, 7, 3),
        "weights": ones(3),
    }
    return tuple((arguments | overrides).values())


def atoms(**overrides: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return arguments of embed_atoms for two samples of three rows, with some replaced."""
    arguments = {
        "atoms": torch.zeros(2, 2, 9, dtype=torch.uint8),
        "degrees": torch.zeros(2, 2, dtype=torch.uint8),
        "lengths": LENGTHS,
        "starts": torch.arange(9),
        "table": TABLE,
        "in_degree": ones(5, 16),
        "out_degree": ones(5, 16),
        "token": ones(1, 16),
    }
    return tuple((arguments | overrides).values())


CALLS = {
    "aggregate": [
        (P, ones(8, 3, 16)),
        (P, ones(2, 5, 16)),
        (ones(2, 2, 3, 5), V),
        (ones(2, 2, 5, 3), V),
        (ones(2, 1, 3, 3)[0], V),
        (ones(2, 3, 3, 3), ones(2, 3, 32)),
        (ones(8, 2, 3, 3), V),
        (P.double(), V),
        (P.long(), V),
        (ones(2, 4, 3, 3), V),  # 4 channels per head
        (P, ones(2, 3, 20)),
        (P, V, 1.0),
        (P, V, -0.1),
        (P, V, torch.nan),
    ],
    "aggregate_sort": [
        (P, ones(8, 3, 16), torch.full((8,), 3)),
        (P, V, ints(3)),
        (P, V, ints(3, 3, 3)),
        (P, V, LENGTHS, torch.ones(15, dtype=torch.bool)),
        (P, V, LENGTHS, torch.ones(16, dtype=torch.int64)),
        (ones(2, 3, 3, 3), ones(2, 3, 32), LENGTHS),
    ],
    "attention": [
        (V, V, ones(8, 3, 16), ones(8, 2, 3, 3), 2),
        (V, ones(2, 2, 16), V, ones(2, 2, 3, 3), 2),
        (ones(1, 3, 16), V, V, ones(2, 2, 3, 3), 2),
        (ones(2, 3, 32), ones(2, 3, 32), ones(2, 3, 32), ones(2, 3, 3, 3), 3),
        (V, V, V, ones(2, 1, 3, 3), 2),
        (V, V, V, ones(3, 3), 2),
        (V, V, V, ones(2, 2, 3, 1), 2),
        (V, V.double(), V, P, 2),
        (V, V, V, P.bool(), 2),
        (V, V, V, P, 0),
        (V, V, V, P, 2, 1.0),
    ],
    "linear_attention": [
        (V, V, V, ints(3), 2),
        (V, V, V, ints(3, 3, 3), 2),
        (ones(1, 3, 16), V, V, LENGTHS, 2),
        (V, ones(2, 2, 16), V, LENGTHS, 2),
        (ones(2, 3, 32), ones(2, 3, 32), ones(2, 3, 32), LENGTHS, 3),
        (V, V, V, LENGTHS, -1),
        (V, V, V, LENGTHS, 0),
        (V, V, V, LENGTHS.int(), 2),
        (V, V, V, LENGTHS.double(), 2),
        (V, V, V, LENGTHS[:, None], 2),
        (V, V.half(), V, LENGTHS, 2),
        (V[0], V[0], V[0], LENGTHS, 2),
    ],
    "head_norm": [
        (V, SHIFTS, SHIFTS, 2),
        (V, SHIFTS, SHIFTS, -1),
        (V, SHIFTS, SHIFTS, 0.5),
        (V, ones(2, 4, 4), ones(2, 4, 4), 0),
        (V, ones(2, 3, 8), ones(2, 3, 8), 0),
        (V, SHIFTS, SHIFTS[:1], 0),
        (V, SHIFTS, ones(2, 1, 16), 0),
        (V, SHIFTS[0], SHIFTS[0], 0),
        (V, SHIFTS.double(), SHIFTS.double(), 0),
        (V[0], SHIFTS, SHIFTS, 0),
        (ones(2, 3, 24), ones(2, 3, 8), ones(2, 3, 8), 0),
    ],
    "column_sort": [
        (V, ints(3)),
        (V, ints(3, 3, 3)),
        (V, LENGTHS, torch.ones(15, dtype=torch.bool)),
        (V, LENGTHS, torch.ones(1, 16, dtype=torch.bool)),
        (ones(2, 3), LENGTHS),
        (V, LENGTHS.float()),
        (V, LENGTHS[:, None]),
        (V, LENGTHS, FLAGS[:, None]),
        (V, LENGTHS, FLAGS.long()),
        (V.double(), LENGTHS),
    ],
    "max_exchange": [
        (V, ints(3)),
        (V, ints(3, 3, 3)),
        (V, LENGTHS.int()),
        (V, LENGTHS.float()),
        (V, torch.ones(2, 3, dtype=torch.bool)),
        (V[0], LENGTHS),
        (V.double(), LENGTHS),
        (ones(2, 3, 15), LENGTHS),
    ],
    "broadcast_max": [
        (V, ints(3), FLAGS),
        (V, ints(3, 3, 3), FLAGS),
        (V, LENGTHS.short(), FLAGS),
        (V, LENGTHS, FLAGS[:15]),
        (V, LENGTHS, FLAGS[None]),
        (V, LENGTHS, FLAGS.byte()),
        (V, LENGTHS, ones(16)),
        (V[0], LENGTHS, FLAGS),
        (V.double(), LENGTHS, FLAGS),
        (ones(2, 3, 15), LENGTHS, FLAGS[:15]),
    ],
    "sort_by_first": [
        (V, ints(3)),
        (V, ints(3, 3, 3)),
        (V, LENGTHS.int()),
        (V, LENGTHS, 2),
        (V, LENGTHS, 0),
        (V[0], LENGTHS),
        (V.double(), LENGTHS),
        (ones(2, 3, 15), LENGTHS),
        (ones(1, 257, 16), ints(257)),
    ],
    "read_out": [
        (V, ints(3), ("max",)),
        (V, ints(3, 3, 3), ("max",)),
        (V, LENGTHS.int(), ("max",)),
        (V, LENGTHS, ("median",)),
        (V, LENGTHS, ("max", "quantiles")),
        (V, LENGTHS, ()),
        (V[0], LENGTHS, ("max",)),
        (V.double(), LENGTHS, ("max",)),
        (ones(2, 3, 15), LENGTHS, ("max",)),
    ],
    "bond_messages": [
        (V, BONDS[:1], TABLE, TABLE),
        (V, BONDS[:, :2], TABLE, TABLE),
        (V, BONDS[:, :, :2], TABLE, TABLE),
        (V, BONDS.int(), TABLE, TABLE),
        (V, BONDS, ones(9, 32), TABLE),
        (V, BONDS, TABLE, ones(9, 32)),
        (V, BONDS, TABLE, TABLE[:0]),
        (V[0], BONDS[0], TABLE, TABLE),
        (V, BONDS, TABLE.double(), TABLE),
        (V.double(), BONDS, TABLE.double(), TABLE.double()),
        (V, BONDS, ones(16), TABLE),
    ],
    "embed_atoms": [
        atoms(atoms=torch.zeros(2, 2, 8, dtype=torch.uint8)),
        atoms(atoms=torch.zeros(2, 3, 9, dtype=torch.uint8)),
        atoms(atoms=torch.zeros(2, 2, 9, dtype=torch.int64)),
        atoms(atoms=torch.zeros(2, 18, dtype=torch.uint8)),
        atoms(degrees=torch.zeros(2, 1, dtype=torch.uint8)),
        atoms(degrees=torch.zeros(2, 2, dtype=torch.int16)),
        atoms(degrees=torch.zeros(1, 2, dtype=torch.uint8)),
        atoms(lengths=ints(3)),
        atoms(lengths=LENGTHS.int()),
        atoms(starts=torch.arange(8)),
        atoms(starts=torch.arange(9).int()),
        atoms(starts=torch.arange(9).float()),
        atoms(table=ones(9, 32)),
        atoms(table=TABLE.double()),
        atoms(in_degree=ones(4, 16)),
        atoms(out_degree=ones(5, 8)),
        atoms(in_degree=ones(0, 16), out_degree=ones(0, 16)),
        atoms(token=ones(2, 16)),
        atoms(token=ones(16)),
        atoms(table=ones(9, 15), in_degree=ones(5, 15), out_degree=ones(5, 15), token=ones(1, 15)),
    ],
    "path_softmax": [
        (ones(4, 2), TYPES + 3, LENGTHS),
        (ones(4, 2), TYPES + torch.eye(3, dtype=torch.int16) * 32_767, LENGTHS),
        (ones(4, 2), TYPES[:, :2], LENGTHS),
        (ones(4, 2), TYPES[:, :, :2], LENGTHS),
        (ones(4, 2), TYPES[0], LENGTHS),
        (ones(4, 2), TYPES.long(), LENGTHS),
        (ones(4), TYPES, LENGTHS),
        (ones(4, 2), TYPES, ints(3)),
        (ones(4, 2), TYPES, LENGTHS.int()),
        (ones(4, 2), TYPES, LENGTHS.double()),
        (ones(4, 2).double(), TYPES, LENGTHS),
        (ones(1, 2), TYPES, LENGTHS),
    ],
    "path_bias": [
        (ones(4, 2), TYPES + 3, LENGTHS),
        (ones(4, 2), TYPES + torch.eye(3, dtype=torch.int16) * 32_767, LENGTHS),
        (ones(4, 2), TYPES[:, :2], LENGTHS),
        (ones(4, 2), TYPES[:, :, :2], LENGTHS),
        (ones(4, 2), TYPES[0], LENGTHS),
        (ones(4, 2), TYPES.long(), LENGTHS),
        (ones(4), TYPES, LENGTHS),
        (ones(4, 2), TYPES, ints(3)),
        (ones(4, 2), TYPES, LENGTHS.int()),
        (ones(4, 2), TYPES, LENGTHS.double()),
        (ones(4, 2).double(), TYPES, LENGTHS),
        (ones(1, 2), TYPES, LENGTHS),
    ],
    "path_values": [
        paths(codes=int32(0, 8, 3)),
        paths(codes=int32(0, -1, 3)),
        paths(codes=ints(0, 7, 3)),
        paths(offsets=int32(1, 2)),
        paths(offsets=int32(0, 4)),
        paths(offsets=int32(0, 2), distances=int32(1, -1)),
        paths(distances=int32(1, 2, 3)),
        paths(bond_rows=ints(0, 5, 1, 2)[:, None]),
        paths(bond_rows=ints(0, -1, 1, 2)[:, None]),
        paths(weights=ones(2)),
        paths(token=ones(1, 16)),
        paths(matrices=ones(2, 8, 16)),
        paths(bond=ones(5, 16)),
        paths(token=ones(1, 8).to(torch.int16)),
        paths(weights=ints(1, 1, 1)),
        paths(offsets=int32(), distances=int32()),
    ],
    "dropout": [(V, 1.0), (V, 1.5), (V, -0.5), (V, torch.nan), (V, torch.tensor(0.5)), (V[..., :5], 0.5)],
    "gelu": [(V[..., :5],), (V.double(),), (V.half(),), (V.long(),)],
}


#: Calls that only the kernels for a CPU reject.
CPU_CALLS = [
    ("column_sort", (ones(2, 3, 15), LENGTHS)),
    ("bond_messages", (V, BONDS - 1, TABLE, TABLE)),
    ("bond_messages", (V, BONDS + 82, TABLE, TABLE)),
    ("bond_messages", (ones(2, 3, 15), BONDS, ones(9, 15), ones(9, 15))),
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


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if "numba" in op.backends])
def test_kernel_rejects_missing_and_additional_arguments(name):
    """The reference then raises Python's error, which names the argument."""
    op, args = OPERATORS[name], TYPICAL[name](torch.Generator().manual_seed(0), 2, 8, [3, 2]).args
    names = list(inspect.signature(op).parameters)
    assert op.choose(*args) == op.choose(**dict(zip(names, args, strict=False))) == "numba"
    required = [p for p in inspect.signature(op).parameters.values() if p.default is p.empty]
    for number in range(1, len(required)):
        with pytest.raises(TypeError, match="missing"):
            op(*args[:number])
    with pytest.raises(TypeError, match="takes"):
        op(*args, *[None] * len(names))
    with pytest.raises(TypeError, match="unexpected"):
        op(*args, other=1)


def changed_arguments(args):
    """Yield arguments of which one tensor has a size, a number of dimensions or a dtype that is changed."""
    for i, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            continue
        changed = [arg[:0], arg[:1], arg[None], arg.flatten(), torch.cat([arg, arg])]
        changed += [arg[0] if arg.dim() and len(arg) else arg, arg[..., :1], arg[..., :-1]]
        changed += [arg.transpose(0, -1), torch.cat([arg, arg], dim=-1)]
        changed += [arg.to(dtype) for dtype in (torch.float64, torch.float32, torch.int64, torch.int16, torch.uint8)]
        for other in changed:
            if other.shape != arg.shape or other.dtype != arg.dtype:
                yield i, (*args[:i], other, *args[i + 1 :])


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if "numba" in op.backends])
def test_kernel_rejects_changed_arguments_or_agrees_with_reference(name):
    op, rejected = OPERATORS[name], 0
    names = list(inspect.signature(op).parameters)
    for shape in ((2, 8, [3, 2]), (4, 8, [2, 2, 2])):
        case = TYPICAL[name](torch.Generator().manual_seed(0), *shape)
        for i, args in changed_arguments(case.args):
            try:
                actual = op.using("numba")(*args)
            except ValueError as error:
                assert "does not support" in str(error)
                rejected += 1
                continue
            if name == "embed_atoms" and names[i] == "table":  # the kernel clamps the features, which have no row now
                assert actual.shape[:2] == case.valid.shape
                continue
            expected = op.reference(*args)
            rows = ... if case.valid is None else case.valid
            torch.testing.assert_close(actual[rows], expected[rows], rtol=1e-4, atol=1e-4)
    assert rejected > 10


WITH_LENGTHS = [name for name, op in OPERATORS.items() if "lengths" in inspect.signature(op).parameters]
WITH_LENGTHS = [name for name in WITH_LENGTHS if "numba" in OPERATORS[name].backends]


def results(name, args, lengths):
    """Return the result and the gradients for other lengths."""
    place = list(inspect.signature(OPERATORS[name]).parameters).index("lengths")
    leaves = [arg.clone().requires_grad_() if is_float(arg) else arg for arg in args]
    return outputs_and_gradients(OPERATORS[name].using("numba"), [*leaves[:place], lengths, *leaves[place + 1 :]])


@pytest.mark.parametrize("name", WITH_LENGTHS)
def test_kernel_clamps_lengths(name):
    """Otherwise compiled code would access memory beyond its arrays."""
    args = TYPICAL[name](torch.Generator().manual_seed(0), 2, 8, [3, 3, 3, 3, 3]).args
    width = int(next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.shape == (5,))[0])
    changed, clamped = ints(2**62, -(2**62), -1, width + 1, width), ints(width, 0, 0, width, width)
    for one, other in zip(results(name, args, changed), results(name, args, clamped), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


PADDED = ["broadcast_max", "column_sort", "linear_attention", "max_exchange", "read_out", "sort_by_first"]


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("filling", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("name", PADDED)
def test_padding_does_not_reach_results_and_gradients(name, filling, backend):
    op, found = OPERATORS[name], []
    args = TYPICAL[name](torch.Generator().manual_seed(0), 2, 8, [3, 7, 1]).args
    lengths = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.shape == (3,))
    valid = torch.arange(int(lengths.max())) < lengths[:, None]
    for value in (0.5, filling):
        leaves = [arg.masked_fill(~valid[:, :, None], value).requires_grad_() if is_float(arg) else arg for arg in args]
        out = op.using(backend)(*leaves)
        used = out if name == "read_out" else out.masked_fill(~valid[:, :, None], 0)
        gradients = torch.autograd.grad(used.sum(), [leaf for leaf in leaves if is_float(leaf)])
        found.append([used, *(gradient[valid] for gradient in gradients)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_every_operator_is_covered():
    assert set(OPERATORS) == set(CALLS)
    assert set(WITH_LENGTHS) - set(PADDED) == {"path_softmax", "path_bias", "embed_atoms"}  # of integers


def test_reference_raises_error_of_torch():
    with pytest.raises(RuntimeError, match="size"):
        OPERATORS["aggregate"](P, ones(8, 3, 16))
    with pytest.raises(IndexError, match="out of range"):
        OPERATORS["path_softmax"](ones(4, 2), TYPES + 3, LENGTHS)
