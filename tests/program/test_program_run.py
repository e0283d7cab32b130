"""Runs of programs: without torch, on several cores, and switched off."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphslice.program import run
from graphslice.program.kernels import layers
from graphslice.program.layout import Argument, N, Value
from graphslice.program.run import FIRST, OUT, Input, Program, address, programs_disabled, programs_enabled

CHANNELS = 16


def sum_of_products() -> Program:
    """Return a program of ``x y + x`` for x and y of ``[B, N, 16]``."""
    size, step = N * CHANNELS, N * CHANNELS * 4
    x, y = (Value((N, CHANNELS), argument=Argument(FIRST + i, step)) for i in range(2))
    product, out = Value((N, CHANNELS)), Value((N, CHANNELS), argument=Argument(OUT, step))
    forward = [(layers.multiply, [x, y, product, size]), (layers.add, [product, x, out, size])]
    inputs = [Input(x, "float32", 0), Input(y, "float32", 1)]
    return Program(inputs, forward, [], [], [], FIRST + 2, out)


def run_program(program: Program, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.full_like(x, np.nan)
    program.forward([(address(x), x.shape), (address(y), y.shape)], address(out), *x.shape[:2], lambda count: [])
    return out


def draw(batch: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, batch, width, CHANNELS)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (2, 7), (50, 3), (129, 1), (3, 113), (2, 300)])
def test_every_sample_is_computed_once(batch, width, threads):
    """In groups, the last of which may be smaller."""
    x, y = draw(batch, width)
    torch.set_num_threads(threads)
    np.testing.assert_allclose(run_program(sum_of_products(), x, y), x * y + x, rtol=1e-6, atol=1e-6)


@given(st.integers(0, 500), st.integers(1, 300), st.integers(1, 64))
def test_samples_are_shared_evenly_among_cores(samples, width, cores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "cores", lambda: cores)
        ends = run.share_ends(samples, width)
    sizes = np.diff([0, *ends])
    assert ends[-1] == samples and 1 <= len(ends) <= cores
    assert sizes.max() - sizes.min() <= 1
    assert len(ends) == 1 or samples * width >= 64 * len(ends)  # enough rows for each
    one_more = len(ends) + 1
    assert one_more > min(cores, samples) or samples * width < 64 * one_more


def test_calls_from_several_threads_do_not_share_memory():
    program, wrong = sum_of_products(), []
    arrays = [draw(40, 3 + number, number) for number in range(4)]

    def call(x: np.ndarray, y: np.ndarray) -> None:
        for _ in range(200):
            if not np.allclose(run_program(program, x, y), x * y + x, rtol=1e-5, atol=1e-5):
                wrong.append(x.shape)

    threads = [threading.Thread(target=call, args=tuple(pair)) for pair in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_programs_can_be_disabled():
    with pytest.raises(ZeroDivisionError), programs_disabled():
        with programs_disabled():
            pass
        assert not programs_enabled()
        raise ZeroDivisionError
    assert programs_enabled()
