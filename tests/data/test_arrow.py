"""Conversion to and from Arrow arrays, compared with that of pyarrow."""

import numpy as np
import pyarrow as pa
import pytest

from graphslice.data.tables import binary_array, bool_array, float_values, number_array, text_array, valid_rows


def same(actual: pa.Array, expected: pa.Array) -> bool:
    actual.validate(full=True)
    return actual.type == expected.type and actual.equals(expected)


@pytest.mark.parametrize("count", [0, 1, 8, 19])
def test_arrays_match_those_of_pyarrow(count):
    numbers, valid = np.arange(count), np.arange(count) % 3 > 0
    for kind in (np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64):
        assert same(number_array(numbers.astype(kind)), pa.array(numbers.astype(kind)))
    assert same(number_array(numbers, valid), pa.array(numbers, mask=~valid))
    assert same(bool_array(valid), pa.array(valid))
    assert same(bool_array(valid, ~valid), pa.array(valid, mask=valid))
    for texts in (["a", None, "", "\u00e9\u4e00"] * count, ["a", ""] * count, [None] * count):
        assert same(text_array(texts), pa.array(texts, pa.string()))
    cells = [b"a", b"", b"\xff\x00b"] * count
    assert same(binary_array(cells), pa.array(cells, pa.binary()))


def test_text_array_replaces_surrogates():
    """Command-line arguments that are not UTF-8 contain surrogates."""
    assert text_array(["C\udcff", "C"]).to_pylist() == ["C?", "C"]


@pytest.mark.parametrize("cells", [[], [1.5, None, 2.5] * 4, [1.5, 2.5, np.inf], [None]], ids=str)
@pytest.mark.parametrize("begin", [0, 1])
def test_float_values_and_valid_rows_of_slice(cells, begin):
    array = pa.array(cells, pa.float32())[begin:]
    np.testing.assert_array_equal(float_values(array), array.to_numpy(zero_copy_only=False), strict=True)
    assert valid_rows(array).tolist() == array.is_valid().to_pylist()
