"""Checks of the training step of a preset, and the problems they report."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphslice.doctor import presets
from graphslice.doctor.presets import check_step
from graphslice.nn import GraphTransformer
from graphslice.ops import path_softmax
from graphslice.program.kernels import attention
from graphslice.program.simd.lanes import store_scalar

CPU = torch.device("cpu")


def test_eager_step_is_timed():
    check = check_step("small", CPU, torch.float32, compiled=False)
    assert check.problem is None and check.mixer == "slice-quantile" and check.batch_size == 16
    assert 0 < check.eager_seconds < 60


def without_weights(samples, values, path_types, lengths, out, count, heads, width):
    """A wrong kernel: all weights are 0."""
    for i in range(samples * heads * width * width):
        store_scalar(out, i, np.float32(0))


def test_wrong_backend_is_reported(monkeypatch):
    programs = path_softmax.backends["numba"].function._program
    programs.cache_clear()
    monkeypatch.setattr(attention, "path_softmax", without_weights)
    check = check_step("small", CPU, torch.float32, compiled=False)
    programs.cache_clear()
    assert check.problem.startswith("path_softmax: the numba backend: predictions differ by")
    assert check.eager_seconds > 0


@pytest.fixture
def quick_compiler(monkeypatch):
    """Compile to torch's own operations; tests of the models cover the code that Inductor generates."""
    compile_function = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_function(function, backend="aot_eager", fullgraph=True)
    )
    yield
    torch._dynamo.reset()


def test_compiled_step_is_timed(quick_compiler):
    check = check_step("small", CPU, torch.float32, compiled=True)
    assert check.problem is None and check.compile_seconds > 0 and check.compiled_speed > 0


def test_wrong_compiled_step_is_reported(monkeypatch):
    def wrong(self, batch_size, **options):
        run = self.run_blocks
        self._compiled = (lambda x, tensors: run(x, tensors).flip(2)), batch_size
        return True

    monkeypatch.setattr(GraphTransformer, "compile_blocks", wrong)
    check = check_step("small", CPU, torch.float32, compiled=True)
    assert check.problem.startswith("compiled: predictions differ by")


def test_failing_compiler_is_reported(monkeypatch):
    def fail(self, batch_size, **options):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(GraphTransformer, "compile_blocks", fail)
    check = check_step("small", CPU, torch.float32, compiled=True)
    assert check.problem == "compiled: RuntimeError: no C++ compiler" and check.mixer == "slice-quantile"


def test_largest_fitting_batch():
    def run(size):
        if size > 100:
            raise torch.OutOfMemoryError

    assert presets._largest_fitting_batch(run, 256) == 81 and presets._largest_fitting_batch(run, 90) == 90
