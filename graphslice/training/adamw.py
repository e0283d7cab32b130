"""AdamW and gradient clipping, compiled for CPUs: one pass over all parameters, where torch needs about a dozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.program.simd.lanes import (
    float32x16,
    load,
    load_scalar,
    reduce_sum,
    splat,
    square_root,
    store,
    store_scalar,
)
from graphslice.threads import parallel_for


class _Group(NamedTuple):
    """Cached layout of the parameters of a group that have gradients.

    Attributes:
        ids: ``id()`` of each parameter.
        moments: tensors of the moments, referenced to keep their addresses valid.
        addresses: int64 ``[2, P]``, addresses of the running means of the gradients and of their squares.
        steps: float32 ``[P]``, number of steps of each parameter; the optimiser states are views of its elements.
        begins: int64 ``[P + 1]``, index of the first block of each parameter among all blocks. A block has 16 elements,
            except for the last of a parameter.
        sizes: int64 ``[P]``, number of elements of each parameter.
    """

    ids: list[int]
    moments: list[Tensor]
    addresses: np.ndarray
    steps: Tensor
    begins: np.ndarray
    sizes: np.ndarray


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) with the arguments, states and results of :class:`torch.optim.AdamW`.

    Steps of contiguous float32 tensors on a CPU run in a compiled kernel, all others in torch.
    """

    def __init__(self, params, **settings) -> None:
        self._layouts: dict[int, _Group] = {}
        super().__init__(params, **settings)

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self._layouts = {}

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        layouts = [self._flat_group(number, group) for number, group in enumerate(self.param_groups)]
        if any(layout is None for layout in layouts):
            self._layouts = {}
            super().step()
            return loss
        for group, layout in zip(self.param_groups, layouts, strict=True):
            if layout is not None and layout[0].size:
                _step(group, *layout)
        return loss

    def _flat_group(self, number: int, group: dict) -> tuple[np.ndarray, _Group] | None:
        """Return the addresses int64 ``[2, P]`` of parameters and gradients, and their layout.

        None if the step must be left to torch.
        """
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        plain = not (group["amsgrad"] or group["maximize"] or group["differentiable"] or group["capturable"])
        addresses = _addresses(parameters)
        if not plain or isinstance(group["lr"], Tensor) or addresses is None:
            return None
        layout, ids = self._layouts.get(number), [id(parameter) for parameter in parameters]
        if layout is not None and layout.ids == ids:
            return addresses, layout
        states = [self.state[parameter] for parameter in parameters]
        if any("step" not in state for state in states):
            return None  # torch creates the states in the first step
        moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        supported = all(m.is_contiguous() and m.dtype == torch.float32 for kind in moments for m in kind)
        step_counts = [float(state["step"]) for state in states]
        if not supported or len(set(step_counts)) > 1:
            return None
        steps = torch.tensor(step_counts, dtype=torch.float32, device="cpu")
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
        moment_addresses = np.array([[tensor.data_ptr() for tensor in kind] for kind in moments], np.int64)
        sizes = _sizes(parameters)
        begins = np.cumsum([0, *-(-sizes // 16)])
        self._layouts[number] = _Group(ids, [*moments[0], *moments[1]], moment_addresses, steps, begins, sizes)
        return addresses, self._layouts[number]


def _step(group: dict, addresses: np.ndarray, layout: _Group) -> None:
    """Update the parameters of a group."""
    layout.steps.add_(1)
    settings = (float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"], float(layout.steps[0]))
    arrays, begins, sizes = np.concatenate([addresses, layout.addresses]), layout.begins, layout.sizes
    blocks = int(begins[-1])
    parallel_for(lambda begin, end: _update(arrays, begins, sizes, settings, begin, end), blocks, values=16 * blocks)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> None:
    """Scale the gradients so that their joint Euclidean norm is at most ``max_norm``.

    As :func:`torch.nn.utils.clip_grad_norm_`, which is used unless all tensors are contiguous float32 on a CPU.

    Args:
        parameters: parameters, of which those without gradients are ignored.
        max_norm: greatest norm.
    """
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    addresses = _addresses(parameters)
    if addresses is None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    else:
        _clip(addresses[1], _sizes(parameters), max_norm)


def _addresses(parameters: Sequence[Tensor]) -> np.ndarray | None:
    """Return the addresses int64 ``[2, P]`` of parameters and gradients.

    None unless all are contiguous float32 tensors on a CPU, which the kernels do not check.
    """
    addresses: list[int] = []
    for tensors in (parameters, [parameter.grad for parameter in parameters if parameter.grad is not None]):
        for tensor in tensors:
            if tensor.dtype != torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
                return None
            addresses.append(tensor.data_ptr())
    return np.array(addresses, np.int64).reshape(2, -1)


def _sizes(parameters: Sequence[Tensor]) -> np.ndarray:
    """Return the number of elements of each parameter, int64 ``[P]``."""
    return np.array([parameter.numel() for parameter in parameters], np.int64)


@njit(cache=True, nogil=True, error_model="numpy")
def _update(addresses, begins, sizes, settings, begin, end):
    """Update the blocks from ``begin`` to ``end``; the result does not depend on how blocks are divided among cores."""
    rate, beta1, beta2, eps, decay, step = settings
    lanes = float32x16()
    decay_factor, size = np.float32(1 - rate * decay), np.float32(rate / (1 - beta1**step))
    root = np.float32(np.sqrt(1 - beta2**step))
    b1, b2, eps = np.float32(beta1), np.float32(beta2), np.float32(eps)
    a1, a2 = np.float32(1 - beta1), np.float32(1 - beta2)
    for i in range(len(sizes)):
        first, last = 16 * max(begin - begins[i], 0), min(16 * (end - begins[i]), sizes[i])
        if first >= last:
            continue
        p, g, m, v = addresses[0, i], addresses[1, i], addresses[2, i], addresses[3, i]
        vector_end = first + (last - first) // 16 * 16
        for k in range(first, vector_end, 16):
            gradient = load(lanes, g, k)
            mean = load(lanes, m, k) * splat(lanes, b1) + gradient * splat(lanes, a1)
            square = load(lanes, v, k) * splat(lanes, b2) + gradient * gradient * splat(lanes, a2)
            store(m, k, mean)
            store(v, k, square)
            scale = square_root(square) / splat(lanes, root) + splat(lanes, eps)
            store(p, k, load(lanes, p, k) * splat(lanes, decay_factor) - splat(lanes, size) * mean / scale)
        for k in range(vector_end, last):
            gradient = load_scalar(lanes, g, k)
            mean = load_scalar(lanes, m, k) * b1 + gradient * a1
            square = load_scalar(lanes, v, k) * b2 + gradient * gradient * a2
            store_scalar(m, k, mean)
            store_scalar(v, k, square)
            scale = np.sqrt(square) / root + eps
            store_scalar(p, k, load_scalar(lanes, p, k) * decay_factor - size * mean / scale)


@njit(cache=True, nogil=True, error_model="numpy")
def _clip(addresses, sizes, max_norm):
    """Scale the gradients to a joint norm of at most ``max_norm``."""
    lanes, total = float32x16(), 0.0
    for i in range(len(addresses)):
        vector_end, sums = sizes[i] // 16 * 16, float32x16()
        for k in range(0, vector_end, 16):
            gradient = load(lanes, addresses[i], k)
            sums = sums + gradient * gradient
        total += np.float64(reduce_sum(sums))
        for k in range(vector_end, sizes[i]):
            total += np.float64(load_scalar(lanes, addresses[i], k)) ** 2
    factor = max_norm / (np.sqrt(total) + 1e-6)
    if factor >= 1:  # False for nan, which is then propagated to all gradients
        return
    for i in range(len(addresses)):
        vector_end = sizes[i] // 16 * 16
        for k in range(0, vector_end, 16):
            store(addresses[i], k, load(lanes, addresses[i], k) * splat(lanes, np.float32(factor)))
        for k in range(vector_end, sizes[i]):
            store_scalar(addresses[i], k, load_scalar(lanes, addresses[i], k) * np.float32(factor))
