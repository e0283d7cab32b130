"""Test cases of the operators: calls on which every backend is compared with the reference implementation.

Every operator has at least two cases, the last of which has the batch as the first dimension of its arguments, and a
function that creates a typical case of any size. If rounding decides which values are equal, the values are chosen so
that no product and no sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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


def _cases_of(name: str):
    def add(make: Callable[[torch.Generator], list[Case]]):
        CASES[name] = make
        return make

    return add


def _typical_of(name: str):
    def add(make: Callable[[torch.Generator, int, int, list[int]], Case]):
        TYPICAL[name] = make
        return make

    return add


# Heads, channels per head, and lengths of the samples: one row; 8 channels; 16 channels, with full and partial vectors
# of columns; 32 channels; 24 channels, which are no whole number of vectors.
SHAPES = [(1, 16, [1]), (2, 8, [7, 1, 3]), (4, 16, [19, 11]), (1, 32, [16, 9]), (2, 24, [35, 2])]
NARROW_HEADS = (2, 4, [6, 3])


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _with_ties(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw from few integer values, whose products with sixteenths and sums are exact."""
    return torch.randint(-4, 5, shape, generator=generator).float()


def _mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _weights(generator: torch.Generator, heads: int, lengths: list[int]) -> Tensor:
    """Draw attention weights that are multiples of 1/16, 0 in the columns of the padding."""
    width = max(lengths)
    weights = torch.randint(0, 5, (len(lengths), heads, width, width), generator=generator) / 16
    return weights * _mask_of(lengths)[:, None, None]


@_typical_of("aggregate")
def _aggregate_case(generator, heads, head_dim, lengths, unsupported_by=()):
    weights = torch.rand(len(lengths), heads, max(lengths), max(lengths), generator=generator)
    return Case((weights, _normal(generator, len(lengths), max(lengths), heads * head_dim)), unsupported_by)


@_cases_of("aggregate")
def _aggregate_cases(generator):
    case = partial(_aggregate_case, generator)
    return [*(case(*shape) for shape in SHAPES), case(*NARROW_HEADS, ("numba",))]


@_typical_of("aggregate_sort")
def _aggregate_sort_case(generator, heads, head_dim, lengths, order="ascending"):
    v = _with_ties(generator, len(lengths), max(lengths), heads * head_dim)
    args = (_weights(generator, heads, lengths), v, torch.tensor(lengths), order)
    return Case(args, valid=_mask_of(lengths), same_dtype=True)


@_cases_of("aggregate_sort")
def _aggregate_sort_cases(generator):
    case = partial(_aggregate_sort_case, generator)
    return [
        *(case(*shape) for shape in (SHAPES[0], SHAPES[1], (1, 24, [19]), (2, 10, [5, 2]))),
        case(*NARROW_HEADS),
        case(2, 8, [4, 7], order="descending"),
        case(2, 8, [4, 7], order=torch.arange(16) % 3 == 1),
    ]


@_typical_of("attention")
def _attention_case(generator, heads, head_dim, lengths, unsupported_by=(), bias_shape=None):
    batch, width = len(lengths), max(lengths)
    bias = 3 * _normal(generator, *(bias_shape or (batch, heads, width, width)))
    bias = bias.masked_fill(~_mask_of(lengths)[:, None, None], -torch.inf)
    return Case((*(_normal(generator, batch, width, heads * head_dim) for _ in range(3)), bias, heads), unsupported_by)


@_cases_of("attention")
def _attention_cases(generator):
    case = partial(_attention_case, generator)
    shared = case(2, 8, [4, 9], ("numba",), (2, 1, 1, 9))
    return [*(case(*shape) for shape in SHAPES), case(*NARROW_HEADS, ("numba",)), shared]


def _bond_messages_case(generator, heads, head_dim, lengths, unsupported_by=()):
    width, channels = max(lengths), heads * head_dim
    # A fifth of the pairs are bonded, with 3 bond types and 2 ring classes.
    upper = torch.randint(0, 30, (len(lengths), width, width), generator=generator).triu(1)
    upper = torch.where(upper <= 6, upper, 0)
    tables = _with_ties(generator, 3, channels), _with_ties(generator, 2, channels)
    x = _with_ties(generator, len(lengths), width, channels)  # exact, so that rounding does not change signs
    return Case((x, (upper + upper.mT).to(torch.int16), *tables), unsupported_by)


@_cases_of("bond_messages")
def _bond_messages_cases(generator):
    case = partial(_bond_messages_case, generator)
    return [case(1, 16, [1]), case(2, 24, [7, 1, 3]), case(1, 8, [4, 9], ("numba",))]


def _pooling_sizes(generator):
    """Yield values ``[B, N, C]``, lengths and the backends that do not support the number of channels."""
    for channels, lengths, unsupported_by in ((16, [1], ()), (9, [7, 1, 3], ("numba",)), (48, [19, 11], ())):
        for draw in (_normal, _with_ties):
            yield draw(generator, len(lengths), max(lengths), channels), torch.tensor(lengths), unsupported_by


@_cases_of("broadcast_max")
def _broadcast_max_cases(generator):
    return [
        Case((v, lengths, torch.arange(v.shape[2]) % 2 == 0), unsupported_by)
        for v, lengths, unsupported_by in _pooling_sizes(generator)
    ]


@_cases_of("column_sort")
def _column_sort_cases(generator):
    cases = [
        Case(
            (_with_ties(generator, len(lengths), max(lengths), channels), torch.tensor(lengths), order), unsupported_by
        )
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


@_cases_of("sort_by_first")
def _sort_by_first_cases(generator):
    return [
        Case((v, lengths), unsupported_by, same_dtype=True) for v, lengths, unsupported_by in _pooling_sizes(generator)
    ]


@_typical_of("sort_by_first")
def _sort_by_first_case(generator, heads, head_dim, lengths):
    return Case((_with_ties(generator, len(lengths), max(lengths), heads * head_dim), torch.tensor(lengths)))


@_cases_of("dropout")
def _dropout_cases(generator):
    return [Case((_normal(generator, *shape), 0.0)) for shape in ((16,), (4, 8), (2, 3, 32))]


@_cases_of("gelu")
def _gelu_cases(generator):
    shapes = {(1, 16): (), (4, 4): (), (3, 5, 48): (), (300, 32): (), (4, 7): ("numba",)}
    return [Case((3 * _normal(generator, *shape),), unsupported_by) for shape, unsupported_by in shapes.items()]


@_typical_of("linear_attention")
def _linear_attention_case(generator, heads, head_dim, lengths, unsupported_by=()):
    tensors = (_normal(generator, len(lengths), max(lengths), heads * head_dim) for _ in range(3))
    return Case((*tensors, torch.tensor(lengths), heads), unsupported_by)


@_cases_of("linear_attention")
def _linear_attention_cases(generator):
    case = partial(_linear_attention_case, generator)
    return [
        *(case(*shape) for shape in SHAPES),
        case(2, 8, [4, 0, 1]),
        case(*NARROW_HEADS, ("numba",)),
        case(1, 8, [257, 3], ("numba",)),
    ]


@_cases_of("max_exchange")
def _max_exchange_cases(generator):
    return [Case((v, lengths), unsupported_by) for v, lengths, unsupported_by in _pooling_sizes(generator)]


@_cases_of("read_out")
def _read_out_cases(generator):
    return [
        Case((v, lengths, *rest), unsupported_by)
        for v, lengths, unsupported_by in _pooling_sizes(generator)
        if lengths.min() > 1  # a molecule has an atom
        for rest in ((("mean", "max"),), (("sum", "atomwise", "token", "mean"), _normal(generator, *v.shape)))
    ] + [Case((_normal(generator, 1, 4, 16), torch.tensor([4]), ("quantiles",)), ("numba",))]


@_typical_of("read_out")
def _read_out_case(generator, heads, head_dim, lengths):
    values = _normal(generator, len(lengths), max(lengths) + 1, heads * head_dim)
    return Case((values, torch.tensor(lengths) + 1, ("mean", "max")))


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


@_cases_of("embed_atoms")
def _embed_atoms_cases(generator):
    return [_embed_atoms_case(generator, 1, 24, [3], ("numba",)), _embed_atoms_case(generator, 2, 24, [5, 5])]


@_typical_of("embed_atoms")
def _embed_atoms_case(generator, heads, head_dim, lengths, unsupported_by=()):
    shape, channels = (len(lengths), max(lengths)), heads * head_dim
    features = torch.randint(0, 4, (*shape, 9), generator=generator).to(torch.uint8)
    degrees = torch.randint(0, 9, shape, generator=generator).to(torch.uint8)
    tables = [_normal(generator, rows, channels) for rows in (36, 6, 6, 1)]
    inputs = features, degrees, torch.tensor(lengths) + 1, 4 * torch.arange(9)
    return Case((*inputs, *tables), unsupported_by, _mask_of([length + 1 for length in lengths]))


@_cases_of("head_norm")
def _head_norm_cases(generator):
    return [
        *(_head_norm_case(generator, *shape) for shape in SHAPES),
        _head_norm_case(generator, *NARROW_HEADS, ("numba",)),
    ]


@_typical_of("head_norm")
def _head_norm_case(generator, heads, head_dim, lengths, unsupported_by=()):
    x = _normal(generator, len(lengths), max(lengths), heads * head_dim)
    return Case((x, *(_normal(generator, 2, heads, head_dim) for _ in range(2)), 1), unsupported_by)


@_typical_of("gelu")
def _gelu_case(generator, heads, head_dim, lengths):
    return Case((3 * _normal(generator, len(lengths), max(lengths), heads * head_dim),))


@_typical_of("dropout")
def _dropout_case(generator, heads, head_dim, lengths):
    return Case((_normal(generator, len(lengths), max(lengths), heads * head_dim), 0.0))


@_typical_of("column_sort")
def _column_sort_case(generator, heads, head_dim, lengths):
    return Case((_with_ties(generator, len(lengths), max(lengths), heads * head_dim), torch.tensor(lengths)))


_typical_of("bond_messages")(_bond_messages_case)


@_typical_of("broadcast_max")
def _broadcast_max_case(generator, heads, head_dim, lengths):
    channels = heads * head_dim
    x = _normal(generator, len(lengths), max(lengths), channels)
    return Case((x, torch.tensor(lengths), torch.arange(channels) % 2 == 0))


@_typical_of("max_exchange")
def _max_exchange_case(generator, heads, head_dim, lengths):
    return Case((_normal(generator, len(lengths), max(lengths), heads * head_dim), torch.tensor(lengths)))


@_typical_of("path_softmax")
def _path_softmax_case(generator, heads, head_dim, lengths):
    return Case((_normal(generator, 401, heads), *_path_types(generator, 400, lengths)))


@_typical_of("path_bias")
def _path_bias_case(generator, heads, head_dim, lengths):
    # The rows of the padding are undefined.
    return _path_softmax_case(generator, heads, head_dim, [max(lengths)] * len(lengths))


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
def _path_values_case(generator, heads, head_dim, lengths):
    return _path_values_arguments(generator, -(-heads // 8) * 8, 5, 10 * sum(lengths), 40 * sum(lengths))
