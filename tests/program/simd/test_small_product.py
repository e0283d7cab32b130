import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphslice.program.run import address
from graphslice.program.simd.small_product import (
    Matrix,
    small_product,
    small_product_of_rows,
    small_product_transposed,
    transpose,
)


def matrix(random, rows: int, columns: int, extra: int) -> np.ndarray:
    """Draw a matrix whose rows are followed by other numbers."""
    return random.normal(size=(rows, columns + extra)).astype(np.float32)


def as_matrix(array: np.ndarray) -> Matrix:
    return Matrix(address(array), array.shape[1])


def multiply(transposed: bool, a: np.ndarray, b: np.ndarray, start: Matrix, out: np.ndarray, *sizes: int) -> None:
    product, a = (small_product_transposed, np.ascontiguousarray(a.T)) if transposed else (small_product, a)
    product(as_matrix(a), as_matrix(b), start, as_matrix(out), *sizes)


@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=100)
@given(
    st.integers(0, 2**20),
    st.integers(1, 40),
    st.integers(0, 70),
    st.integers(8, 120),
    st.integers(0, 3),
    st.sampled_from(["none", "matrix", "row", "out"]),
)
def test_product_matches_numpy_and_writes_nothing_else(transposed, seed, rows, inner, columns, extra, start):
    random = np.random.default_rng(seed)
    columns = columns // 16 * 16 + 16 if start == "out" else columns
    a, b = matrix(random, rows, inner, extra), matrix(random, inner, columns, 2 * extra)
    given_start, out = matrix(random, rows, columns, extra), matrix(random, rows, columns, 3 * extra)
    before, product = out.copy(), a[:, :inner].astype(np.float64) @ b[:, :columns]
    starts = {
        "none": (Matrix(0, 0), 0),
        "matrix": (as_matrix(given_start), given_start[:, :columns]),
        "row": (Matrix(address(given_start), 0), given_start[:1, :columns]),
        "out": (as_matrix(out), out[:, :columns].copy()),
    }
    summand, values = starts[start]
    multiply(transposed, a, b, summand, out, rows, inner, columns)
    np.testing.assert_allclose(out[:, :columns], values + product, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(out[:, columns:], before[:, columns:])


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(300, 768, 768), (112, 80, 3072), (17, 3072, 272), (1, 768, 96)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_large_products_match_numpy(rows, inner, columns, transposed):
    random = np.random.default_rng(0)
    a, b, out = matrix(random, rows, inner, 0), matrix(random, inner, columns, 0), np.empty((rows, columns), np.float32)
    expected = a.astype(np.float64) @ b
    multiply(transposed, a, b, Matrix(0, 0), out, rows, inner, columns)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)


@settings(max_examples=50)
@given(st.integers(0, 2**20), st.integers(1, 130), st.integers(1, 5), st.integers(1, 7), st.integers(0, 3))
def test_product_of_rows_has_the_bits_of_the_product_with_the_transpose(seed, rows, inner, columns, extra):
    random, inner, columns = np.random.default_rng(seed), 16 * inner, 16 * columns
    a, b = matrix(random, rows, inner, extra), matrix(random, columns, inner, extra)
    bias = matrix(random, 1, columns, 0)
    out, expected = (np.full((rows, columns + extra), np.nan, np.float32) for _ in range(2))
    start, sizes = Matrix(address(bias), 0), (rows, inner, columns)
    small_product_of_rows(as_matrix(a), as_matrix(b), start, as_matrix(out), *sizes)
    multiply(False, a, np.ascontiguousarray(b[:, :inner].T), start, expected, *sizes)
    np.testing.assert_array_equal(out, expected)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_transpose_matches_numpy(rows, columns, extra):
    source = matrix(np.random.default_rng(0), rows, columns, extra)
    out = np.full((columns, rows + extra), np.nan, np.float32)
    transpose(as_matrix(source), rows, columns, as_matrix(out))
    np.testing.assert_array_equal(out[:, :rows], source[:, :columns].T)
    assert np.isnan(out[:, rows:]).all()
