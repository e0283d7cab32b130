"""Checks of the operators on a CPU."""

import pytest
import torch

from graphslice.doctor.checks import check_operator, operators_on
from graphslice.ops import OPERATORS

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", operators_on(CPU))
def test_every_operator_passes_on_cpu(name):
    checks = check_operator(name, CPU)
    assert [(check.dtype, check.backend) for check in checks[1:]] == [("bfloat16", "torch"), ("float16", "torch")]
    assert checks[0].dtype == "float32" and checks[0].backend == "numba" and checks[0].speed > 0
    assert all(check.problem is None for check in checks)


def test_operators_with_a_backend_for_a_device():
    assert operators_on(CPU) == list(OPERATORS) and operators_on(torch.device("meta")) == []


def test_wrong_and_failing_kernels_are_reported(monkeypatch):
    op = OPERATORS["column_sort"]
    monkeypatch.setattr(op.backends["numba"], "function", lambda x, *args: op.reference(x, *args) * 1.1)
    first, *others = [check.problem for check in check_operator("column_sort", CPU)]
    assert first.startswith("differs from plain torch") and others == [None, None]

    def fail(*args):
        raise RuntimeError("out of resource:\n shared memory")

    monkeypatch.setattr(op.backends["numba"], "function", fail)
    problems = [check.problem for check in check_operator("column_sort", CPU)]
    assert problems == ["RuntimeError: out of resource: shared memory", None, None]
