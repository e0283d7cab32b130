"""``P = Softmax(S + E)`` straight from the bias of each walk: nothing of the size of all pairs but P itself."""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from graphslice.ops.threads import over_parts

# Exponents of float64 reach to -745: two biases of a head further apart than this take the plain way.
_RANGE = 600.0
# What is less than this of a row is nothing: its products would be denormal numbers, which are slow.
_LEAST = 1e-28


def walk_softmax(values: Tensor, pairs: Tensor, lengths: Tensor) -> Tensor:
    """The attention map that the structure of molecules makes by itself.

    A batch has far fewer walks than pairs, so the exponential is taken once a walk, in float64 and
    relative to the largest of its head, and a row of P is those of its pairs over their sum.

    Args:
        values: ``[W + 1, H]``, the bias ``S + E`` of the graph token (row 0) and of each walk.
        pairs: integer ``[B, N, N]``, the walk of each pair of atoms.
        lengths: integer ``[B]``, the number of atoms.

    Returns:
        ``[B, H, N + 1, N + 1]``, dtype of ``values``, row and column 0 the token's; 0 in the padding
        and, on the CPU, for less than 1e-28.
    """
    on_cpu = values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)
    if on_cpu and float((values.detach().amax(0) - values.detach().amin(0)).max()) <= _RANGE:
        return _walk_softmax(values, pairs, lengths)
    return _in_torch(values, pairs, lengths)


def _in_torch(values: Tensor, pairs: Tensor, lengths: Tensor) -> Tensor:
    """:func:`walk_softmax` in plain torch, for any device and dtype."""
    valid = torch.arange(pairs.shape[1] + 1, device=pairs.device) <= lengths[:, None]
    bias = walk_bias(values, pairs).masked_fill(~valid[:, None, None, :], -torch.inf)
    return torch.softmax(bias, dim=-1).masked_fill(~valid[:, None, :, None], 0)


def walk_bias(values: Tensor, pairs: Tensor) -> Tensor:
    """``[B, H, N + 1, N + 1]``: the bias itself, arguments as of :func:`walk_softmax`; anything in the padding."""
    index = torch.nn.functional.pad(pairs.clamp_min(0).long() + 1, (1, 0, 1, 0))
    return torch.nn.functional.embedding(index, values).permute(0, 3, 1, 2).contiguous()


@torch.library.custom_op("graphslice::walk_softmax", mutates_args=(), device_types="cpu")
def _walk_softmax(values: Tensor, pairs: Tensor, lengths: Tensor) -> Tensor:
    batch, atoms = pairs.shape[:2]
    double = values.detach().double()
    exponentials = torch.exp(double - double.amax(0)).numpy()
    result = values.new_zeros(batch, values.shape[1], atoms + 1, atoms + 1)
    out, pairs_array, sizes = result.numpy(), pairs.contiguous().numpy(), lengths.numpy()
    over_parts(lambda begin, end: _forward(exponentials, pairs_array, sizes, out, begin, end), batch, result.numel())
    return result


@_walk_softmax.register_fake
def _(values, pairs, lengths):
    batch, atoms = pairs.shape[:2]
    return values.new_empty(batch, values.shape[1], atoms + 1, atoms + 1)


@torch.library.custom_op("graphslice::walk_softmax_backward", mutates_args=(), device_types="cpu")
def _walk_softmax_backward(grad: Tensor, result: Tensor, pairs: Tensor, lengths: Tensor, walks: int) -> Tensor:
    sums = torch.zeros(walks, result.shape[1], dtype=torch.float64)
    _backward(grad.contiguous().numpy(), result.numpy(), pairs.contiguous().numpy(), lengths.numpy(), sums.numpy())
    return sums.to(result.dtype)


@_walk_softmax_backward.register_fake
def _(grad, result, pairs, lengths, walks):
    return result.new_empty(walks, result.shape[1])


def _remember(ctx, inputs, output):
    values, pairs, lengths = inputs
    ctx.save_for_backward(output, pairs, lengths)
    ctx.walks = values.shape[0]


def _gradient(ctx, grad):
    result, pairs, lengths = ctx.saved_tensors
    return _walk_softmax_backward(grad, result, pairs, lengths, ctx.walks), None, None


_walk_softmax.register_autograd(_gradient, setup_context=_remember)


@njit(cache=True, nogil=True)
def _forward(exponentials, pairs, lengths, out, begin, end):
    heads = exponentials.shape[1]
    total = exponentials[0].copy()
    for b in range(begin, end):
        rows = lengths[b] + 1
        for i in range(rows):
            total[:] = 0.0
            for j in range(rows):
                walk = pairs[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                for h in range(heads):
                    total[h] += exponentials[walk, h]
                    out[b, h, i, j] = exponentials[walk, h]
            for h in range(heads):
                if total[h] > 1e-30 * heads:
                    scale = 1.0 / total[h]
                    for j in range(rows):
                        part = out[b, h, i, j] * scale
                        out[b, h, i, j] = part if part > _LEAST else 0.0
                else:  # beyond what a float32 holds before it is divided
                    for j in range(rows):
                        walk = pairs[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                        part = exponentials[walk, h] / total[h]
                        out[b, h, i, j] = part if part > _LEAST else 0.0


@njit(cache=True, nogil=True)
def _backward(grad, result, pairs, lengths, sums):
    heads = result.shape[1]
    for b in range(len(lengths)):
        rows = lengths[b] + 1
        for h in range(heads):
            for i in range(rows):
                dot = 0.0
                for j in range(rows):
                    dot += grad[b, h, i, j] * result[b, h, i, j]
                for j in range(rows):
                    walk = pairs[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                    sums[walk, h] += result[b, h, i, j] * (grad[b, h, i, j] - dot)
