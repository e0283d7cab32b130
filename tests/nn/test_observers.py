"""Hooks and modes that a program would ignore are noticed, by whatever public function they were set."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from graphslice.nn.observers import has_hooks, is_observed

HOOKS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_noticed(name):
    module = nn.Linear(2, 2)
    of_one, of_all = getattr(module, f"register_{name}"), getattr(hooks_of_all, f"register_module_{name}")
    for register, noticed in ((of_one, lambda: has_hooks(module)), (of_all, is_observed)):
        assert not noticed()
        handle = register(lambda *args: None)
        assert noticed()
        handle.remove()
        assert not noticed()


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_Functions, _Dispatch, lambda: FlopCounterMode(display=False)])
def test_modes_are_noticed(mode):
    with mode():
        assert is_observed()
    assert not is_observed()


def test_nothing_is_noticed_in_ordinary_modes():
    with torch.inference_mode():
        assert not is_observed()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert not is_observed()
