"""Error for second derivatives of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

Backward = Callable[..., Any]


def once_differentiable(backward: Backward) -> Backward:
    """Make the ``backward`` of a kernel raise an error for second derivatives (decorator).

    The gradients that kernels compute are constants for torch. torch's decorator of the same name may silently return
    a second derivative that lacks their contribution.

    Args:
        backward: static method of a :class:`torch.autograd.Function`.

    Returns:
        The method, which raises RuntimeError if it is called with ``create_graph=True``.
    """

    @wraps(backward)
    def checked_backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # only with create_graph=True
            raise RuntimeError(
                "compiled kernels have no second derivatives: for create_graph=True, compute inside "
                "graphslice.ops.dispatch.reference_only()"
            )
        return backward(ctx, *grads)

    return checked_backward
