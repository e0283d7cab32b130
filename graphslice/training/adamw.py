"""AdamW and the clipping before it, on a CPU in one pass each: torch takes a dozen over as many small tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.simd.lanes import float32x16, load, load_scalar, reduce_sum, splat, square_root, store, store_scalar
from graphslice.ops.threads import parallel_for


class _Group(NamedTuple):
    """What stays the same from step to step of the parameters of a group that have gradients.

    Attributes:
        ids: of the parameters.
        moments: which keeps their addresses alive.
        addresses: int64 ``[2, P]``, of the means of the gradients and of their squares.
        steps: ``[P]``, how many steps each has made; the states hold its elements.
        begins: int64 ``[P + 1]``, where the blocks of each parameter begin among those of all: 16 numbers each, but for
            the last of a parameter.
        sizes: int64 ``[P]``, how many numbers each has.
    """

    ids: list[int]
    moments: list[Tensor]
    addresses: np.ndarray
    steps: Tensor
    begins: np.ndarray
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
        found = [self._flat_group(number, group) for number, group in enumerate(self.param_groups)]
        if any(each is None for each in found):
            self._known = {}
            super().step()
            return loss
        for group, each in zip(self.param_groups, found, strict=True):
            if each is not None and each[0].size:
                _step(group, *each)
        return loss

    def _flat_group(self, number: int, group: dict) -> tuple[np.ndarray, _Group] | None:
        """Where the parameters of a group that have gradients lie, and these, int64 ``[2, P]``, and what is known of
        them; None where torch must do it."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        plain = not (group["amsgrad"] or group["maximize"] or group["differentiable"] or group["capturable"])
        addresses = _addresses(parameters)
        if not plain or isinstance(group["lr"], Tensor) or addresses is None:
            return None
        known, ids = self._known.get(number), [id(parameter) for parameter in parameters]
        if known is not None and known.ids == ids:
            return addresses, known
        states = [self.state[parameter] for parameter in parameters]
        if any("step" not in state for state in states):
            return None  # torch makes the states in the first step
        moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        whole = all(m.is_contiguous() and m.dtype == torch.float32 for each in moments for m in each)
        made = [float(state["step"]) for state in states]
        if not whole or len(set(made)) > 1:
            return None
        steps = torch.tensor(made, dtype=torch.float32, device="cpu")
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
        places = np.array([[tensor.data_ptr() for tensor in each] for each in moments], np.int64)
        sizes = _sizes(parameters)
        begins = np.cumsum([0, *-(-sizes // 16)])
        self._known[number] = _Group(ids, [*moments[0], *moments[1]], places, steps, begins, sizes)
        return addresses, self._known[number]


def _step(group: dict, addresses: np.ndarray, known: _Group) -> None:
    known.steps.add_(1)
    rates = (float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"], float(known.steps[0]))
    places, begins, sizes = np.concatenate([addresses, known.addresses]), known.begins, known.sizes
    blocks = int(begins[-1])
    parallel_for(lambda begin, end: _update(places, begins, sizes, rates, begin, end), blocks, values=16 * blocks)


def clip_gradients(parameters: Sequence[Tensor], largest: float) -> None:
    """Scale the gradients so that together they are no longer than ``largest``.

    As :func:`torch.nn.utils.clip_grad_norm_`, which serves what is no contiguous float32 on a CPU.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    addresses = _addresses(parameters)
    if addresses is None:
        torch.nn.utils.clip_grad_norm_(parameters, largest)
    else:
        _clip(addresses[1], _sizes(parameters), largest)


def _addresses(parameters: Sequence[Tensor]) -> np.ndarray | None:
    """Where parameters and their gradients lie, int64 ``[2, P]``.

    None where one is not contiguous, float32 and on a CPU: compiled code believes it.
    """
    places: list[int] = []
    for tensors in (parameters, [parameter.grad for parameter in parameters if parameter.grad is not None]):
        for tensor in tensors:
            if tensor.dtype != torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
                return None
            places.append(tensor.data_ptr())
    return np.array(places, np.int64).reshape(2, -1)


def _sizes(parameters: Sequence[Tensor]) -> np.ndarray:
    return np.array([parameter.numel() for parameter in parameters], np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _update(addresses, begins, sizes, rates, begin, end):
    """Of the blocks from ``begin`` to ``end``: whatever core has one, its numbers are computed in the same way."""
    rate, beta1, beta2, eps, decay, step = rates
    lanes = float32x16()
    kept, size = np.float32(1 - rate * decay), np.float32(rate / (1 - beta1**step))
    root = np.float32(np.sqrt(1 - beta2**step))
    b1, b2, eps = np.float32(beta1), np.float32(beta2), np.float32(eps)
    a1, a2 = np.float32(1 - beta1), np.float32(1 - beta2)
    for i in range(len(sizes)):
        first, last = 16 * max(begin - begins[i], 0), min(16 * (end - begins[i]), sizes[i])
        if first >= last:
            continue
        p, g, m, v = addresses[0, i], addresses[1, i], addresses[2, i], addresses[3, i]
        whole = first + (last - first) // 16 * 16
        for k in range(first, whole, 16):
            gradient = load(lanes, g, k)
            mean = load(lanes, m, k) * splat(lanes, b1) + gradient * splat(lanes, a1)
            square = load(lanes, v, k) * splat(lanes, b2) + gradient * gradient * splat(lanes, a2)
            store(m, k, mean)
            store(v, k, square)
            deviation = square_root(square) / splat(lanes, root) + splat(lanes, eps)
            store(p, k, load(lanes, p, k) * splat(lanes, kept) - splat(lanes, size) * mean / deviation)
        for k in range(whole, last):
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
    for i in range(len(addresses)):
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
    for i in range(len(addresses)):
        whole = sizes[i] // 16 * 16
        for k in range(0, whole, 16):
            store(addresses[i], k, load(lanes, addresses[i], k) * splat(lanes, np.float32(factor)))
        for k in range(whole, sizes[i]):
            store_scalar(addresses[i], k, load_scalar(lanes, addresses[i], k) * np.float32(factor))
