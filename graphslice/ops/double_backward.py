"""What compiled code has no second derivatives of."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

Backward = Callable[..., Any]


def once_differentiable(backward: Backward) -> Backward:
    """Decorator of the backward of a kernel, whose gradients are constants for torch: who wants to differentiate them
    is told.

    torch's own of this name lets the second derivative by a single tensor be one without these gradients' part.

    Raises:
        RuntimeError: (what is decorated) where a graph of the gradients is asked for.
    """

    @wraps(backward)
    def first(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # as of create_graph
            raise RuntimeError(
                "kernels have no second derivatives: for create_graph=True compute under "
                "graphslice.ops.dispatch.reference_only()"
            )
        return backward(ctx, *grads)

    return first
