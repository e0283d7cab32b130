"""The step of a preset: its parts, and what they say when something is wrong."""

from __future__ import annotations

import pytest
import torch

from graphslice.doctor import presets
from graphslice.doctor.presets import check_compiled, check_eager
from graphslice.nn import GraphTransformer
from graphslice.ops import path_softmax

CPU = torch.device("cpu")


def test_time_and_memory():
    *_, check = check_eager("small", CPU, torch.float32)
    assert check.problem is None and check.mixer == "slice-quantile" and check.batch_size == 16
    assert 0 < check.eager_seconds < 60


def test_the_backends_of_a_step(monkeypatch):
    backend = path_softmax.backends["numba"]
    right = backend.function
    monkeypatch.setattr(backend, "function", lambda *args: right(*args).square())
    first, last = check_eager("small", CPU, torch.float32)
    assert first.problem is None and last.problem.startswith("path_softmax: the numba backend: predictions differ by")
    assert last.eager_seconds == first.eager_seconds


@pytest.fixture
def quick_compiler(monkeypatch):
    """Compiles to torch's own operations: the tests of the models cover the code that Inductor makes."""
    compile_function = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_function(function, backend="aot_eager", fullgraph=True)
    )
    yield
    torch._dynamo.reset()


def test_a_compiled_step(quick_compiler):
    (check,) = check_compiled("small", CPU, torch.float32)
    assert check.problem is None and check.compile_seconds > 0 and check.compiled_speed > 0


def test_a_compiled_step_that_lies(monkeypatch):
    def wrong(self, batch_size, **options):
        run = self.run_blocks
        self._compiled = (lambda x, tensors: run(x, tensors).flip(2)), batch_size
        return True

    monkeypatch.setattr(GraphTransformer, "compile_blocks", wrong)
    (check,) = check_compiled("small", CPU, torch.float32)
    assert check.problem.startswith("compiled: predictions differ by")


def test_a_compiler_that_fails(monkeypatch):
    def fail(self, batch_size, **options):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(GraphTransformer, "compile_blocks", fail)
    (check,) = check_compiled("small", CPU, torch.float32)
    assert check.problem == "compiled: RuntimeError: no C++ compiler" and check.mixer == "slice-quantile"


def test_the_largest_batch_that_fits():
    def run(size):
        if size > 100:
            raise torch.OutOfMemoryError

    assert presets._largest_fitting_batch(run, 256) == 81 and presets._largest_fitting_batch(run, 90) == 90
