"""Layout of programs in memory: values that exist at the same time never overlap."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.program.layout import _KEPT, _SCRATCH, ATOMS, ROW_NUMBER, Argument, Layout, N, NotTraceable, Size, Value

WIDTHS = [1, 2, 7, 40, 112, 113, 256, 257, 300]
SHAPES = [(), (16,), (N,), (N, 16), (N, 48), (ATOMS,), (2, N, N), (ATOMS, ATOMS), (5,), (N, 3)]
coefficients = st.integers(0, 9)


def kernel(*operands):
    """Stand for a kernel, which is not run."""


@given(st.tuples(coefficients, coefficients), st.tuples(coefficients, coefficients), coefficients, st.integers(1, 300))
def test_arithmetic_of_sizes_matches_integers(a, b, number, width):
    first, second = Size(*a), Size(*b)
    n, m = a[0] + a[1] * width, b[0] + b[1] * width
    assert first.of(width) == n
    assert (first + second).of(width) == n + m and (first * second).of(width) == n * m
    assert (first + number).of(width) == (number + first).of(width) == n + number
    assert (first - number).of(width) == n - number
    assert (first * number).of(width) == (number * first).of(width) == n * number


def test_sizes_beyond_squares_are_not_traceable():
    assert (N * N).of(5) == 25 and (3 * N * N + N).of(2) == 14 and (ATOMS * ATOMS).of(4) == 9
    for a, b in ((N * N, N), (N, N * N), (N * N, N * N), (ATOMS, N * N)):
        with pytest.raises(NotTraceable, match="beyond"):
            a * b


CONDITIONS = [
    bool, int, range, "x".__mul__, lambda n: n == 1, lambda n: n != 1, lambda n: n in (1, 2), lambda n: n > 3,
    lambda n: n <= 3, lambda n: n < N, lambda n: max(n, 3), lambda n: [0][n],
]  # fmt: skip


def test_conditions_on_the_number_of_rows_are_not_traceable():
    """They would be decided once for all batches."""
    for condition in CONDITIONS:
        with pytest.raises(NotTraceable, match="number of rows"):
            condition(N)


@st.composite
def programs(draw):
    """Draw instructions with values, sizes, numbers and arguments as operands, and the values that are kept."""
    values = [
        Value(draw(st.sampled_from(SHAPES)), draw(st.sampled_from([4, 4, 4, 1, 8, ROW_NUMBER])))
        for _ in range(draw(st.integers(1, 12)))
    ]
    kept = [value for value in values if draw(st.integers(0, 4)) == 0]
    for value in kept:
        value.kept = True
    passed = Value((N, 16), argument=Argument(3, N * 64))
    others = st.sampled_from([0, 7, N, N * 16, Argument(4), Argument(5, N), passed])
    operands = st.lists(st.sampled_from(values) | others, max_size=6)
    return [(kernel, draw(operands)) for _ in range(draw(st.integers(0, 15)))], kept


def places_of(layout: Layout, instructions, width: int) -> dict[Value, int]:
    """Return the place of every value that the caller does not pass, which must be the same in all instructions."""
    addresses, places = layout.for_width(width), {}
    for i, (_, operands) in enumerate(instructions):
        for k, operand in enumerate(operands):
            if isinstance(operand, Value) and operand.argument is None:
                place = addresses.per_batch[i, k] if operand.kept else addresses.constant[i, k]
                assert places.setdefault(operand, place) == place
                assert addresses.steps[i, k] == (operand.bytes_of(width) if operand.kept else 0)
                assert layout.areas[i, k] == (_KEPT if operand.kept else _SCRATCH)
    return places


@settings(max_examples=100)
@given(programs(), st.sampled_from(WIDTHS))
def test_values_that_exist_at_the_same_time_never_overlap(program, width):
    instructions, kept = program
    layout = Layout(instructions, kept)
    addresses, places = layout.for_width(width), places_of(layout, instructions, width)
    uses: dict[Value, list[int]] = {}
    for i, (_, operands) in enumerate(instructions):
        for operand in operands:
            if isinstance(operand, Value) and operand in places:
                uses.setdefault(operand, []).append(i)
    scratch = [value for value in places if not value.kept]
    size_of = {value: addresses.group * value.bytes_of(width) for value in scratch}
    for value in scratch:
        assert places[value] % 64 == 0 and 64 <= places[value] <= addresses.scratch - size_of[value]
    for a, b in itertools.combinations(scratch, 2):
        if max(uses[a][0], uses[b][0]) <= min(uses[a][-1], uses[b][-1]):
            (begin, size), (other, _) = sorted([(places[a], size_of[a]), (places[b], size_of[b])])
            assert begin + size <= other or 0 in (size_of[a], size_of[b])
    ends = np.cumsum([value.bytes_of(width) for value in kept])
    assert addresses.kept == (ends[-1] if kept else 0)
    for value, end in zip(kept, ends, strict=True):
        assert places.get(value, end - value.bytes_of(width)) == end - value.bytes_of(width)


@pytest.mark.parametrize("width", WIDTHS)
def test_memory_is_reused_after_the_last_use(width):
    """A chain of functions needs memory for two values, however long it is."""
    values = [Value((N, 16)) for _ in range(50)]
    layout = Layout([(kernel, [a, b]) for a, b in itertools.pairwise(values)], [])
    addresses = layout.for_width(width)
    size = addresses.group * 64 * width
    assert addresses.group == max(1, 112 // width)  # a group of samples has about a hundred rows
    assert addresses.scratch == 64 + 2 * size
    wide = Layout([(kernel, [Value((N, 64))]), (kernel, [Value((N, 16)) for _ in range(4)])], []).for_width(width)
    assert wide.scratch == 64 + 4 * size  # the large block is split


@pytest.mark.parametrize(("width", "size"), [(1, 1), (256, 1), (257, 4)])
def test_row_numbers_are_bytes_for_up_to_256_rows(width, size):
    assert Value((N, 16), ROW_NUMBER).bytes_of(width) == 16 * width * size


def test_operands_that_are_no_values_keep_their_meaning():
    passed, size = Value((N, 16), argument=Argument(6, N * 64)), N * 16 + 3
    layout = Layout([(kernel, [5, size, Argument(3), Argument(4, N * 8), passed])], [])
    addresses = layout.for_width(10)
    assert addresses.constant[0, :5].tolist() == [5, 163, 0, 0, 0]
    assert addresses.steps[0, :5].tolist() == [0, 0, 0, 80, 640]
    assert np.diff(layout.areas[0, 2:5]).tolist() == [1, 2] and layout.areas[0, :2].tolist() == [0, 0]
    assert not addresses.constant[0, 5:].any() and not layout.areas[0, 5:].any()
