"""Kernels have first derivatives: who asks for second ones is told, and gets no constants in their place."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

import graphslice.nn
import graphslice.ops
from graphslice.nn.context import _Cast
from graphslice.ops import gelu
from graphslice.ops.dispatch import reference_only


def functions() -> list[type[torch.autograd.Function]]:
    for package in (graphslice.ops, graphslice.nn):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "triton" not in module.name:
                importlib.import_module(module.name)
    found = torch.autograd.Function.__subclasses__()
    return [each for each in found if each.__module__.startswith("graphslice.") and each is not _Cast]


def test_every_backward_says_so():
    found = functions()
    assert len(found) > 12 and [each for each in found if not hasattr(each.backward, "__wrapped__")] == []


def test_the_hessian_of_a_kernel():
    def hessian() -> torch.Tensor:
        x = torch.linspace(-1, 1, 16, requires_grad=True)
        (first,) = torch.autograd.grad((gelu(x) * x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    with pytest.raises(RuntimeError, match=r"no second derivatives: .*reference_only"):
        hessian()
    with reference_only():
        x = torch.linspace(-1, 1, 16, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad((torch.nn.functional.gelu(x) * x).sum(), x, create_graph=True)
        torch.testing.assert_close(hessian().double(), torch.autograd.grad(first.sum(), x)[0], rtol=1e-5, atol=1e-5)
