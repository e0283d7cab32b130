"""``P = Softmax(S + E)`` straight from the bias of each path type: nothing of the size of all pairs but P itself."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.threads import parallel_for

# Exponents of float64 reach to -745: the kernel takes no two biases of a head further apart than this.
_MAX_RANGE = 600.0
# What is less than this of a row is nothing: its products would be denormal numbers, which are slow.
_MIN_WEIGHT = 1e-28
# Samples whose gradients are summed together.
_CHUNK = 16


@operator
def path_softmax(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    """The attention weights that the structure of molecules makes by itself (Ying et al. 2021, eqs. 6 and 7).

    A batch has far fewer path types than pairs, so the kernel takes the exponential once a path type, in
    float64 and relative to the largest of its head; a row of P is those of its pairs over their sum.

    Args:
        values: ``[W + 1, H]``, the bias ``S + E`` of the graph token (row 0) and of each path type.
        path_types: integer ``[B, N, N]``, the path type of each pair of atoms, from 0 to ``W - 1``.
        lengths: integer ``[B]``, the number of atoms.

    Returns:
        ``[B, H, N + 1, N + 1]``, dtype of ``values``, row and column 0 the token's; 0 in the padding
        and, on the CPU, for less than 1e-28.
    """
    valid = torch.arange(path_types.shape[1] + 1, device=path_types.device) <= lengths[:, None]
    attn_bias = path_bias(values, path_types).masked_fill(~valid[:, None, None, :], -torch.inf)
    return torch.softmax(attn_bias, dim=-1).masked_fill(~valid[:, None, :, None], 0)


def path_bias(values: Tensor, path_types: Tensor) -> Tensor:
    """``[B, H, N + 1, N + 1]``: the bias itself, arguments as of :func:`path_softmax`; anything in the padding."""
    index = torch.nn.functional.pad(path_types.clamp_min(0).long() + 1, (1, 0, 1, 0))
    return torch.nn.functional.embedding(index, values).permute(0, 3, 1, 2).contiguous()


def _fits(values: Tensor, path_types: Tensor, lengths: Tensor) -> bool:
    if values.dim() != 2 or path_types.dim() != 3 or path_types.is_floating_point() or lengths.is_floating_point():
        return False
    batch, width, _ = path_types.shape
    if path_types.shape != (batch, width, width) or lengths.shape != (batch,):
        return False
    lowest, highest, span = _extremes(path_types.contiguous().view(-1).numpy(), values.detach().contiguous().numpy())
    return lowest >= -1 and highest <= len(values) - 2 and span <= _MAX_RANGE


# Not a custom operator of torch.library: calling one loads the compiler, which takes longer than predicting a molecule.
@path_softmax.backend("numba", dtypes=(torch.float32, torch.float64), fits=_fits)
def _numba(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    lengths = lengths.clamp(-1, path_types.shape[1])  # compiled code checks no bounds
    if torch.is_grad_enabled():
        return _PathSoftmax.apply(values, path_types, lengths)
    return _path_softmax(values, path_types, lengths)


def _path_softmax(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    batch, atoms = path_types.shape[:2]
    double = values.detach().double()
    exponentials = torch.exp(double - double.amax(0)).numpy()
    result = values.new_zeros(batch, values.shape[1], atoms + 1, atoms + 1)
    out, types, sizes = result.numpy(), path_types.contiguous().numpy(), lengths.numpy()
    work = 4 * result.numel()
    parallel_for(lambda begin, end: _forward(exponentials, types, sizes, out, begin, end), batch, work)
    return result


class _PathSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
        result = _path_softmax(values, path_types, lengths)
        ctx.save_for_backward(result, path_types, lengths)
        ctx.num_values = values.shape[0]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        result, path_types, lengths = ctx.saved_tensors
        # Sums of so many samples at a time, whatever the number of threads: so the result does not depend on it.
        chunks = -(-len(lengths) // _CHUNK)
        sums = np.zeros((chunks, ctx.num_values, result.shape[1]))
        upstream, types = grad.contiguous().numpy(), path_types.contiguous().numpy()
        arguments = upstream, result.numpy(), types, lengths.numpy(), sums
        parallel_for(lambda begin, end: _backward(*arguments, begin, end), chunks, values=4 * result.numel())
        return torch.from_numpy(sums.sum(axis=0)).to(result.dtype), None, None


@njit(cache=True, nogil=True)
def _extremes(path_types, values):
    """The smallest and the largest path type, and how far the biases of a head are apart at most."""
    lowest, highest, span = np.int64(0), np.int64(-1), 0.0
    for path in path_types:
        lowest, highest = min(lowest, np.int64(path)), max(highest, np.int64(path))
    for h in range(values.shape[1]):
        least, most = values[0, h], values[0, h]
        for w in range(len(values)):
            least, most = min(least, values[w, h]), max(most, values[w, h])
            if not np.isfinite(values[w, h]):
                return lowest, highest, np.inf
        span = max(span, np.float64(most) - np.float64(least))
    return lowest, highest, span


@njit(cache=True, nogil=True)
def _forward(exponentials, path_types, lengths, out, begin, end):
    heads = exponentials.shape[1]
    total = exponentials[0].copy()
    for b in range(begin, end):
        rows = lengths[b] + 1
        for i in range(rows):
            total[:] = 0.0
            for j in range(rows):
                path = path_types[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                for h in range(heads):
                    total[h] += exponentials[path, h]
                    out[b, h, i, j] = exponentials[path, h]
            for h in range(heads):
                if total[h] > 1e-30 * heads:
                    scale = 1.0 / total[h]
                    for j in range(rows):
                        weight = out[b, h, i, j] * scale
                        out[b, h, i, j] = weight if weight > _MIN_WEIGHT else 0.0
                else:  # beyond what a float32 holds before it is divided
                    for j in range(rows):
                        path = path_types[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                        weight = exponentials[path, h] / total[h]
                        out[b, h, i, j] = weight if weight > _MIN_WEIGHT else 0.0


@njit(cache=True, nogil=True)
def _backward(grad, result, path_types, lengths, sums, begin, end):
    heads = result.shape[1]
    for b in range(begin * _CHUNK, min(end * _CHUNK, len(lengths))):
        rows = lengths[b] + 1
        for h in range(heads):
            for i in range(rows):
                dot = 0.0
                for j in range(rows):
                    dot += grad[b, h, i, j] * result[b, h, i, j]
                for j in range(rows):
                    path = path_types[b, i - 1, j - 1] + 1 if i > 0 and j > 0 else 0
                    sums[b // _CHUNK, path, h] += result[b, h, i, j] * (grad[b, h, i, j] - dot)
