"""Checks of the operators on a CPU."""

from __future__ import annotations

import pytest
import torch

from graphslice.doctor.operators import check_operator, operators_on
from graphslice.ops import OPERATORS

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_passes_on_cpu(name):
    checks = list(check_operator(name, CPU))
    assert [check.dtype for check in checks] == ["float32", "bfloat16", "float16"]
    assert checks[0].backend == "numba" and checks[0].speed > 0
    assert all(check.problem is None for check in checks)


def test_operators_with_a_backend_for_a_device():
    assert set(operators_on(CPU)) == set(OPERATORS) and operators_on(torch.device("meta")) == []


def test_wrong_and_failing_kernels_are_reported(monkeypatch):
    op = OPERATORS["column_sort"]
    monkeypatch.setattr(op.backends["numba"], "function", lambda x, *args: op.reference(x, *args) * 1.1)
    assert [check.problem[:24] for check in check_operator("column_sort", CPU)] == ["differs from plain torch"] * 3

    def fail(*args):
        raise RuntimeError("out of resource:\n shared memory")

    monkeypatch.setattr(op.backends["numba"], "function", fail)
    problems = [check.problem for check in check_operator("column_sort", CPU)]
    assert problems == ["RuntimeError: out of resource: shared memory"] * 3
