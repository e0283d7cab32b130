"""Detection of hooks and torch modes that observe a model. The only private names of torch on the default path."""

from __future__ import annotations

import torch
from torch import nn
from torch.overrides import has_torch_function

# Dictionaries of hooks of a module, which torch offers no public way to list.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """True if a module has forward or backward hooks."""
    return any(getattr(module, name) for name in _HOOKS)


def is_observed() -> bool:
    """True if hooks of all modules, or a dispatch or function mode, such as a counter of operations, are active."""
    probe = (torch.empty(0),)
    return (
        has_torch_function(probe)
        or torch._C._len_torch_dispatch_stack() > 0
        or nn.modules.module._has_any_global_hook()
    )
