import numpy as np
import pytest
from numba import njit

from graphslice.program.run import address
from graphslice.program.simd.lanes import exp, float32x16, load, reduce_max, reduce_sum, store


@njit
def exponentials(source, out, size):
    for i in range(0, size, 16):
        store(out, i, exp(load(float32x16(), source, i)))


@njit
def reductions(source):
    lanes = load(float32x16(), source, 0)
    return reduce_sum(lanes), reduce_max(lanes)


def exp_of(values) -> np.ndarray:
    x = np.resize(np.asarray(values, np.float32), -(-len(values) // 16) * 16)
    out = np.empty_like(x)
    exponentials(address(x), address(out), len(x))
    return out[: len(values)]


def test_exponential_is_exact_to_three_units_in_the_last_place():
    x = np.concatenate([np.linspace(-63.9, 88, 100_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    units = np.abs(exp_of(x).astype(np.float64) - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() <= 3


def test_exponential_of_special_values():
    found = exp_of([0.0, -0.0, -64.1, -65.0, -1e30, -np.inf, 88.0, 89.0, 1e30, np.inf])
    np.testing.assert_allclose(found[:6], [1, 1, 0, 0, 0, 0], rtol=0, atol=0)
    np.testing.assert_allclose(found[6:], np.full(4, np.exp(88.0)), rtol=1e-6)
    payloads = np.array([0x7FC00000, 0xFFC00000, 0x7FC001FF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(exp_of(payloads)).all()


def test_sum_and_maximum_of_lanes():
    x = np.random.default_rng(0).normal(size=16).astype(np.float32)
    total, largest = reductions(address(x))
    assert largest == x.max() and total == pytest.approx(x.sum(), rel=1e-5)
