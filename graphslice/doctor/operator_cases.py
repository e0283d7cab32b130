"""Test cases of the operators: calls on which every backend is compared with the reference implementation.

Every operator has at least two cases, the last of which has the batch as the first dimension of its arguments, and a
function that creates a typical case of any size. If rounding decides which values are equal, the values are chosen so
that no product and no sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Case:
    """Arguments of a call, in float32.

    Attributes:
        args: positional arguments.
        unsupported_by: names of the backends that do not support the call.
        valid: bool ``[B, N]``, True for the rows of the output to compare; None for all.
        same_dtype: if True, the reference runs in the dtype of the backend instead of float64, because rounding decides
            which values are equal.
    """

    args: tuple
    unsupported_by: tuple[str, ...] = ()
    valid: Tensor | None = None
    same_dtype: bool = False


#: Test cases by operator name: functions of a random number generator.
CASES: dict[str, Callable[[torch.Generator], list[Case]]] = {}

#: Typical case by operator name: functions of a generator, the number of heads, channels per head and sample lengths.
TYPICAL: dict[str, Callable[[torch.Generator, int, int, list[int]], Case]] = {}


# Heads, channels per head, and lengths of the samples: one row; 8 channels; 16 channels, with full and partial vectors
# of columns; 32 channels; 24 channels, which are no whole number of vectors.
SHAPES = [(1, 16, [1]), (2, 8, [7, 1, 3]), (4, 16, [19, 11]), (1, 32, [16, 9]), (2, 24, [35, 2])]
NARROW_HEADS = (2, 4, [6, 3])


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _with_ties(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw from few integer values, whose products with sixteenths and sums are exact."""
    return torch.randint(-4, 5, shape, generator=generator).float()


def _typical_of(name: str, *shapes: tuple, not_by_numba: Sequence[tuple] = ()):
    """Register a function that makes a typical case; its cases are those of the shapes, if there are any."""

    def add(make: Callable[..., Case]):
        def cases(generator: torch.Generator) -> list[Case]:
            narrow = [replace(make(generator, *shape), unsupported_by=("numba",)) for shape in not_by_numba]
            return narrow + [make(generator, *shape) for shape in shapes]

        TYPICAL[name] = make
        if shapes:
            CASES[name] = cases
        return make

    return add


def _cases_of(name: str):
    """Register a function that makes the cases."""

    def add(make: Callable[[torch.Generator], list[Case]]):
        CASES[name] = make
        return make

    return add


def _pooled(name: str):
    """Register a function that makes a case from drawn values ``[B, N, C]``, without and with equal ones."""
    shapes = [(1, 16, [1]), (3, 16, [19, 11])]
    narrow = (1, 9, [7, 1, 3])
    draws = (_normal, _with_ties)
    return _typical_of(
        name, *((*s, draw) for s in shapes for draw in draws), not_by_numba=[(*narrow, draw) for draw in draws]
    )


def _rows(generator, heads, head_dim, lengths, draw=_normal):
    """Draw values ``[B, N, C]``, and return them with the lengths."""
    return draw(generator, len(lengths), max(lengths), heads * head_dim), torch.tensor(lengths)


def _mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _weights(generator: torch.Generator, heads: int, lengths: list[int]) -> Tensor:
    """Draw attention weights that are multiples of 1/16, 0 in the columns of the padding."""
    width = max(lengths)
    weights = torch.randint(0, 5, (len(lengths), heads, width, width), generator=generator) / 16
    return weights * _mask_of(lengths)[:, None, None]


@_typical_of("aggregate", *SHAPES, not_by_numba=[NARROW_HEADS])
def _aggregate(generator, heads, head_dim, lengths):
    weights = torch.rand(len(lengths), heads, max(lengths), max(lengths), generator=generator)
    return Case((weights, _rows(generator, heads, head_dim, lengths)[0]))


@_typical_of(
    "aggregate_sort",
    *(SHAPES[0], SHAPES[1], (1, 24, [19]), (2, 10, [5, 2]), NARROW_HEADS),
    *((2, 8, [4, 7], order) for order in ("descending", torch.arange(16) % 3 == 1)),
)
def _aggregate_sort(generator, heads, head_dim, lengths, order="ascending"):
    v, rows = _rows(generator, heads, head_dim, lengths, _with_ties)
    return Case((_weights(generator, heads, lengths), v, rows, order), valid=_mask_of(lengths), same_dtype=True)


@_typical_of("attention", *SHAPES, not_by_numba=[NARROW_HEADS, (2, 8, [4, 9], (2, 1, 1, 9))])
def _attention(generator, heads, head_dim, lengths, bias_shape=None):
    batch, width = len(lengths), max(lengths)
    bias = 3 * _normal(generator, *(bias_shape or (batch, heads, width, width)))
    bias = bias.masked_fill(~_mask_of(lengths)[:, None, None], -torch.inf)
    return Case((*(_normal(generator, batch, width, heads * head_dim) for _ in range(3)), bias, heads))


@_typical_of("bond_messages", (1, 16, [1]), (2, 24, [7, 1, 3]), not_by_numba=[(1, 8, [4, 9])])
def _bond_messages(generator, heads, head_dim, lengths):
    width, channels = max(lengths), heads * head_dim
    # A fifth of the pairs are bonded, with 3 bond types and 2 ring classes.
    upper = torch.randint(0, 30, (len(lengths), width, width), generator=generator).triu(1)
    upper = torch.where(upper <= 6, upper, 0)
    tables = _with_ties(generator, 3, channels), _with_ties(generator, 2, channels)
    x = _with_ties(generator, len(lengths), width, channels)  # exact, so that rounding does not change signs
    return Case((x, (upper + upper.mT).to(torch.int16), *tables))


@_pooled("broadcast_max")
def _broadcast_max(generator, heads, head_dim, lengths, draw=_normal):
    v, rows = _rows(generator, heads, head_dim, lengths, draw)
    return Case((v, rows, torch.arange(v.shape[2]) % 2 == 0))


@_pooled("max_exchange")
def _max_exchange(generator, heads, head_dim, lengths, draw=_normal):
    return Case(_rows(generator, heads, head_dim, lengths, draw))


@_pooled("sort_by_first")
def _sort_by_first(generator, heads, head_dim, lengths, draw=_with_ties):
    return Case(_rows(generator, heads, head_dim, lengths, draw), same_dtype=True)


@_typical_of("column_sort")
def _column_sort(generator, heads, head_dim, lengths):
    return Case(_rows(generator, heads, head_dim, lengths, _with_ties))


@_cases_of("column_sort")
def _column_sort_cases(generator):
    cases = [
        Case((*_rows(generator, 1, channels, lengths, _with_ties), order), unsupported_by)
        for channels, lengths, order, unsupported_by in (
            (16, [1], "ascending", ()),
            (5, [7, 0, 3], "descending", ("numba",)),
            (16, [8, 0, 2], "descending", ()),
            (48, [5, 9], torch.arange(48) % 3 == 1, ()),
        )
    ]
    special = _with_ties(generator, 2, 8, 16)
    special.view(-1)[:200:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0]).repeat(10)
    large = Case((_with_ties(generator, 1, 300, 1),), ("numba",)), Case((_with_ties(generator, 1, 300, 16),))
    return [*cases, Case((special, torch.tensor([8, 6]))), *large]


@_typical_of("dropout")
def _dropout(generator, heads, head_dim, lengths):
    return Case((_rows(generator, heads, head_dim, lengths)[0], 0.0))


@_cases_of("dropout")
def _dropout_cases(generator):
    return [Case((_normal(generator, *shape), 0.0)) for shape in ((16,), (4, 8), (2, 3, 32))]


@_typical_of("gelu")
def _gelu(generator, heads, head_dim, lengths):
    return Case((3 * _rows(generator, heads, head_dim, lengths)[0],))


@_cases_of("gelu")
def _gelu_cases(generator):
    shapes = {(1, 16): (), (4, 4): (), (3, 5, 48): (), (300, 32): (), (4, 7): ("numba",)}
    return [Case((3 * _normal(generator, *shape),), unsupported_by) for shape, unsupported_by in shapes.items()]


@_typical_of("linear_attention", *SHAPES, (2, 8, [4, 0, 1]), not_by_numba=[NARROW_HEADS, (1, 8, [257, 3])])
def _linear_attention(generator, heads, head_dim, lengths):
    tensors = (_normal(generator, len(lengths), max(lengths), heads * head_dim) for _ in range(3))
    return Case((*tensors, torch.tensor(lengths), heads))


@_typical_of("read_out")
def _read_out(generator, heads, head_dim, lengths):
    # A molecule has an atom and its graph token.
    return Case((*_rows(generator, heads, head_dim, [length + 1 for length in lengths]), ("mean", "max")))


@_cases_of("read_out")
def _read_out_cases(generator):
    cases = []
    for draw in (_normal, _with_ties):
        values, rows = _rows(generator, 3, 16, [19, 11], draw)
        parts = "sum", "atomwise", "token", "mean"
        cases += [Case((values, rows, ("mean", "max"))), Case((values, rows, parts, _normal(generator, 2, 19, 48)))]
    return [*cases, Case((_normal(generator, 1, 4, 16), torch.tensor([4]), ("quantiles",)), ("numba",))]


def _path_types(generator, types, lengths):
    """Draw path types of atoms, int16 ``[B, N, N]``, and return them with the number of rows, graph token included."""
    width = max(lengths)
    drawn = torch.randint(0, types, (len(lengths), width, width), generator=generator).to(torch.int16)
    drawn[~(_mask_of(lengths)[:, :, None] & _mask_of(lengths)[:, None])] = -1
    return drawn, torch.tensor(lengths) + 1


@_cases_of("path_softmax")
def _path_softmax_cases(generator):
    return [
        Case((torch.linspace(-scale / 2, scale / 2, 7 * heads).view(7, heads), *_path_types(generator, 6, lengths)))
        for heads, lengths, scale in ((3, [1], 1.0), (3, [7, 1, 4], 3.0), (2, [5, 9, 33], 60.0))
    ]


@_cases_of("path_bias")
def _path_bias_cases(generator):
    return [
        Case((_normal(generator, 7, heads), *_path_types(generator, 6, lengths)))
        for heads, lengths in ((3, [1]), (8, [7, 7]))
    ]


@_typical_of("path_softmax")
def _path_softmax(generator, heads, head_dim, lengths):
    return Case((_normal(generator, 401, heads), *_path_types(generator, 400, lengths)))


@_typical_of("path_bias")
def _path_bias(generator, heads, head_dim, lengths):
    # The rows of the padding are undefined.
    return _path_softmax(generator, heads, head_dim, [max(lengths)] * len(lengths))


@_typical_of("embed_atoms", (2, 24, [5, 5]), not_by_numba=[(1, 24, [3])])
def _embed_atoms(generator, heads, head_dim, lengths):
    shape, channels = (len(lengths), max(lengths)), heads * head_dim
    features = torch.randint(0, 4, (*shape, 9), generator=generator).to(torch.uint8)
    degrees = torch.randint(0, 9, shape, generator=generator).to(torch.uint8)
    tables = [_normal(generator, rows, channels) for rows in (36, 6, 6, 1)]
    inputs = features, degrees, torch.tensor(lengths) + 1, 4 * torch.arange(9)
    return Case((*inputs, *tables), valid=_mask_of([length + 1 for length in lengths]))


@_typical_of("head_norm", *SHAPES, not_by_numba=[NARROW_HEADS])
def _head_norm(generator, heads, head_dim, lengths):
    x, _ = _rows(generator, heads, head_dim, lengths)
    return Case((x, *(_normal(generator, 2, heads, head_dim) for _ in range(2)), 1))


def _path_values_arguments(generator, heads, positions, paths, entries):
    def integers(high, *shape):
        return torch.randint(0, high, shape, generator=generator)

    parameters = [
        _normal(generator, *shape) for shape in ((1, heads), (6, heads), (9, heads), (positions, heads, heads))
    ]
    distances, codes = integers(9, paths).to(torch.int32), integers(positions * 11, entries).to(torch.int32)
    starts = integers(entries + 1, paths).sort().values.to(torch.int32)
    distances[:1], starts[:1] = 510, 0
    return Case((*parameters, integers(9, 11, 3), distances, starts, codes, _normal(generator, entries)))


@_cases_of("path_values")
def _path_values_cases(generator):
    narrow = _path_values_arguments(generator, 4, 2, 5, 12)
    narrow.unsupported_by = ("numba",)
    sizes = (8, 1, 1, 3), (16, 5, 40, 90), (24, 3, 13, 13)
    return [narrow, *(_path_values_arguments(generator, *size) for size in sizes)]


@_typical_of("path_values")
def _path_values(generator, heads, head_dim, lengths):
    return _path_values_arguments(generator, -(-heads // 8) * 8, 5, 10 * sum(lengths), 40 * sum(lengths))
