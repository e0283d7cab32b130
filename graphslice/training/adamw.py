"""AdamW and the clipping before it, on a CPU in one pass each: torch takes a dozen over as many small tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.simd.lanes import float32x16, load, load_scalar, reduce_sum, splat, square_root, store, store_scalar


class _Group(NamedTuple):
    """What stays the same from step to step of the parameters of a group that have gradients."""

    ids: list[int]
    moments: list[Tensor]
    addresses: list[list[int]]
    steps: list[Tensor]
    sizes: np.ndarray


class AdamW(torch.optim.AdamW):
    """:class:`torch.optim.AdamW` (Loshchilov and Hutter 2019), with its arguments, states and results.

    Steps of contiguous float32 tensors on a CPU run compiled; all others, as torch does them.
    """

    def __init__(self, params, **settings) -> None:
        self._known: dict[int, _Group] = {}
        super().__init__(params, **settings)

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self._known = {}

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [self._together(number, group) for number, group in enumerate(self.param_groups)]
        if any(each is None for each in found):
            self._known = {}
            super().step()
            return loss
        for group, each in zip(self.param_groups, found, strict=True):
            parameters, known = each
            if parameters:
                torch._foreach_add_(known.steps, 1)
                beta1, beta2 = group["betas"]
                now = [[tensor.data_ptr() for tensor in tensors] for tensors in (parameters, _gradients(parameters))]
                rates = (float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], float(known.steps[0]))
                _update(np.array(now + known.addresses, np.int64), known.sizes, rates)
        return loss

    def _together(self, number: int, group: dict) -> tuple[list[Tensor], _Group] | None:
        """The parameters of a group that have gradients, and what is known of them; None where torch must do it."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        plain = not (group["amsgrad"] or group["maximize"] or group["differentiable"] or group["capturable"])
        if not plain or isinstance(group["lr"], Tensor) or not fits(parameters):
            return None
        known, ids = self._known.get(number), [id(parameter) for parameter in parameters]
        if known is not None and known.ids == ids:
            return parameters, known
        states = [self.state[parameter] for parameter in parameters]
        if any("step" not in state for state in states):
            return None  # torch makes the states in the first step
        steps = [state["step"] for state in states]
        moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        whole = all(m.is_contiguous() and m.dtype == torch.float32 for each in moments for m in each)
        if not whole or len({float(step) for step in steps}) > 1:
            return None
        addresses = [[tensor.data_ptr() for tensor in each] for each in moments]
        known = self._known[number] = _Group(ids, [*moments[0], *moments[1]], addresses, steps, _sizes(parameters))
        return parameters, known


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale the gradients so that together they are no longer than ``largest``.

    As :func:`torch.nn.utils.clip_grad_norm_`, which serves what is no contiguous float32 on a CPU.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if not fits(parameters):
        torch.nn.utils.clip_grad_norm_(parameters, largest)
        return
    addresses = np.array([gradient.data_ptr() for gradient in _gradients(parameters)], np.int64)
    _clip(addresses, _sizes(parameters), largest)


def fits(parameters: Sequence[Tensor]) -> bool:
    """Whether tensors and their gradients are contiguous, float32 and on a CPU."""
    return all(
        tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()
        for tensor in (*parameters, *_gradients(parameters))
    )


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _sizes(parameters: Sequence[Tensor]) -> np.ndarray:
    return np.array([parameter.numel() for parameter in parameters], np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _update(addresses, sizes, rates):
    rate, beta1, beta2, eps, decay, step = rates
    lanes = float32x16()
    kept, size = np.float32(1 - rate * decay), np.float32(rate / (1 - beta1**step))
    root = np.float32(np.sqrt(1 - beta2**step))
    b1, b2, eps = np.float32(beta1), np.float32(beta2), np.float32(eps)
    a1, a2 = np.float32(1 - beta1), np.float32(1 - beta2)
    for i in range(len(sizes)):
        p, g, m, v = addresses[0, i], addresses[1, i], addresses[2, i], addresses[3, i]
        whole = sizes[i] // 16 * 16
        for k in range(0, whole, 16):
            gradient = load(lanes, g, k)
            mean = load(lanes, m, k) * splat(lanes, b1) + gradient * splat(lanes, a1)
            square = load(lanes, v, k) * splat(lanes, b2) + gradient * gradient * splat(lanes, a2)
            store(m, k, mean)
            store(v, k, square)
            deviation = square_root(square) / splat(lanes, root) + splat(lanes, eps)
            store(p, k, load(lanes, p, k) * splat(lanes, kept) - splat(lanes, size) * mean / deviation)
        for k in range(whole, sizes[i]):
            gradient = load_scalar(lanes, g, k)
            mean = load_scalar(lanes, m, k) * b1 + gradient * a1
            square = load_scalar(lanes, v, k) * b2 + gradient * gradient * a2
            store_scalar(m, k, mean)
            store_scalar(v, k, square)
            deviation = np.sqrt(square) / root + eps
            store_scalar(p, k, load_scalar(lanes, p, k) * kept - size * mean / deviation)


@njit(cache=True, nogil=True, error_model="numpy")
def _clip(addresses, sizes, largest):
    lanes, total = float32x16(), 0.0
    for i in range(len(sizes)):
        whole, sums = sizes[i] // 16 * 16, float32x16()
        for k in range(0, whole, 16):
            gradient = load(lanes, addresses[i], k)
            sums = sums + gradient * gradient
        total += np.float64(reduce_sum(sums))
        for k in range(whole, sizes[i]):
            total += np.float64(load_scalar(lanes, addresses[i], k)) ** 2
    factor = largest / (np.sqrt(total) + 1e-6)
    if factor >= 1:  # and not where it is nan: what is not finite shall be seen
        return
    for i in range(len(sizes)):
        whole = sizes[i] // 16 * 16
        for k in range(0, whole, 16):
            store(addresses[i], k, load(lanes, addresses[i], k) * splat(lanes, np.float32(factor)))
        for k in range(whole, sizes[i]):
            store_scalar(addresses[i], k, load_scalar(lanes, addresses[i], k) * np.float32(factor))
