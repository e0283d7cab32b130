"""Second and forward-mode derivatives of kernels raise an error instead of being silently wrong."""

import importlib
import pkgutil

import pytest
import torch
from torch.autograd import forward_ad

import graphslice.nn
import graphslice.ops
import graphslice.program
from graphslice.ops import linear_attention
from graphslice.ops.dispatch import reference_only
from graphslice.program.function import once_differentiable


def autograd_functions() -> list[type[torch.autograd.Function]]:
    for package in (graphslice.program, graphslice.ops, graphslice.nn):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "triton" not in module.name:
                importlib.import_module(module.name)
    classes = torch.autograd.Function.__subclasses__()
    return [cls for cls in classes if cls.__module__.startswith("graphslice.")]


def test_every_backward_is_once_differentiable():
    classes = autograd_functions()
    assert {"_ProgramFunction", "_PathValues", "_TritonSort", "_TritonMessages"} <= {cls.__name__ for cls in classes}
    ours = once_differentiable(print).__code__  # torch's decorator may silently return a wrong second derivative
    assert [cls for cls in classes if cls.backward.__code__ is not ours] == []


def times_square(x: torch.Tensor) -> torch.Tensor:
    """Return ``x |x|^2`` of a vector: linear attention of one row."""
    x = x.view(1, 1, -1)
    return linear_attention(x, x, x, torch.ones(1, dtype=torch.int64), 1)


def test_hessian_raises_unless_reference_only():
    def hessian() -> torch.Tensor:
        x = torch.linspace(-1, 1, 16, requires_grad=True)
        (first,) = torch.autograd.grad(times_square(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    with pytest.raises(RuntimeError, match=r"no second derivatives: .*reference_only"):
        hessian()
    with reference_only():
        x = torch.linspace(-1, 1, 16, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad((x * x.square().sum()).sum(), x, create_graph=True)
        torch.testing.assert_close(hessian().double(), torch.autograd.grad(first.sum(), x)[0], rtol=1e-4, atol=1e-4)


def test_forward_mode_raises_unless_reference_only():
    def tangent() -> torch.Tensor:
        x = torch.linspace(-1, 1, 16)
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(times_square(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    with pytest.raises(RuntimeError, match=r"no forward-mode derivatives: .*reference_only"):
        tangent()
    with reference_only():
        x = torch.linspace(-1, 1, 16)
        expected = x.square().sum() + 2 * x * x.sum()
        torch.testing.assert_close(tangent().flatten(), expected, rtol=1e-4, atol=1e-4)
