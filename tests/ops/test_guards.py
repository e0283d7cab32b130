"""Invalid shapes and indices: kernels reject them, and the torch reference raises an error."""

from __future__ import annotations

import pytest
import torch

from graphslice.ops import OPERATORS


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


TRUE = torch.ones(2, 3, dtype=torch.bool)
TABLE = ones(9, 16)
V, P, LENGTHS = ones(2, 3, 16), ones(2, 2, 3, 3) / 3, ints(3, 2)
TYPES = torch.zeros(2, 3, 3, dtype=torch.int16)
BONDS = torch.zeros(2, 3, 3, dtype=torch.int16)


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


CALLS = {
    "aggregate": [
        (P, ones(8, 3, 16)),
        (P, ones(2, 5, 16)),
        (ones(2, 2, 3, 5), V),
        (ones(2, 2, 5, 3), V),
        (ones(2, 1, 3, 3)[0], V),
        (ones(2, 3, 3, 3), ones(2, 3, 32)),
        (ones(8, 2, 3, 3), V),
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
    ],
    "linear_attention": [
        (V, V, V, ints(3), 2),
        (V, V, V, ints(3, 3, 3), 2),
        (ones(1, 3, 16), V, V, LENGTHS, 2),
        (V, ones(2, 2, 16), V, LENGTHS, 2),
        (ones(2, 3, 32), ones(2, 3, 32), ones(2, 3, 32), LENGTHS, 3),
        (V, V, V, LENGTHS, -1),
    ],
    "column_sort": [
        (V, ints(3)),
        (V, ints(3, 3, 3)),
        (V, LENGTHS, torch.ones(15, dtype=torch.bool)),
        (V, LENGTHS, torch.ones(1, 16, dtype=torch.bool)),
        (ones(2, 3), LENGTHS),
    ],
    "max_exchange": [(V, TRUE[:1]), (V, TRUE[:, :2]), (V, TRUE.int()), (V[0], TRUE)],
    "broadcast_max": [
        (V, TRUE[:1], torch.ones(16, dtype=torch.bool)),
        (V, TRUE[:, :2], torch.ones(16, dtype=torch.bool)),
        (V, TRUE, torch.ones(15, dtype=torch.bool)),
        (V, TRUE, ones(16)),
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
    ],
    "add_norm": [
        (V, ones(2, 1, 16), ones(16), ones(16)),
        (V, ones(2, 3, 32), ones(16), ones(16)),
        (V, V, ones(8), ones(8)),
        (V, V, ones(16), ones(1)),
    ],
    "path_softmax": [
        (ones(4, 2), TYPES + 3, LENGTHS),
        (ones(4, 2), TYPES - 2, LENGTHS),
        (ones(4, 2), TYPES + torch.eye(3, dtype=torch.int16) * 32_767, LENGTHS),
        (ones(4, 2), TYPES[:, :2], LENGTHS),
        (ones(4, 2), TYPES[0], LENGTHS),
        (ones(4), TYPES, LENGTHS),
        (ones(4, 2), TYPES, ints(3)),
        (ones(4, 2), TYPES, LENGTHS.double()),
        (ones(1, 2), TYPES, LENGTHS),
    ],
    "sum_rows": [
        (TABLE, ints(0, 9, 1), ints(0, 1), ones(3)),
        (TABLE, ints(0, -1, 1), ints(0, 1), ones(3)),
        (TABLE, ints(8, 0, 3), ints(0, 2, 1), ones(3)),
        (TABLE, ints(8, 0, 3), ints(0, 4), ones(3)),
        (TABLE, ints(8, 0, 3), ints(1, 2), ones(3)),
        (TABLE, ints(8, 0, 3), ints(0, 1), ones(2)),
        (TABLE, ints(8, 0, 3).int(), ints(0, 1).int(), ones(3)),
        (TABLE, ints(8, 0, 3)[None], ints(0, 1), ones(3)),
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
        paths(offsets=int32(), distances=int32()),
    ],
    "dropout": [(V, 1.0), (V, 1.5), (V, -0.5)],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, calls in CALLS.items() for number in range(len(calls))]
)
def test_kernel_rejects_invalid_arguments(name, number):
    op, args = OPERATORS[name], CALLS[name][number]
    assert op.choose(*args) == "torch"
    for backend in op.backends:
        with pytest.raises(ValueError, match=f"the {backend} backend of {name} does not support"):
            op.using(backend)(*args)


def test_every_operator_with_several_arguments_is_covered():
    assert set(OPERATORS) - set(CALLS) == {"gelu"}


def test_reference_raises_error_of_torch():
    with pytest.raises(RuntimeError, match="size"):
        OPERATORS["aggregate"](P, ones(8, 3, 16))
    with pytest.raises(IndexError, match="out of range"):
        OPERATORS["path_softmax"](ones(4, 2), TYPES + 3, LENGTHS)
