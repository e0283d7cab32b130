"""``P = Softmax(S + E)`` computed from the bias of each path type, without materialising the bias of all pairs."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from graphslice.ops.dispatch import operator
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.threads import parallel_for

# Largest difference of two biases of a head that the kernel supports: exp underflows in float64 below -745.
_MAX_RANGE = 600.0
# Smaller weights are set to 0: their products would be denormal numbers, which are slow.
_MIN_WEIGHT = 1e-28
# Samples per partial sum of the gradients.
_CHUNK = 16


@operator
def path_softmax(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    """Compute attention weights that depend on the molecular graph alone (Ying et al. 2021, eqs. 6 and 7).

    A batch has far fewer path types than pairs, so the kernel takes the exponential once per path type, in float64 and
    relative to the maximum of the head, and normalises the rows afterwards.

    The numba backend supports float32 and float64, if the biases of a head differ by at most 600.

    Args:
        values: ``[W + 1, H]``, floating point, bias ``S + E`` of the graph token (row 0) and of each path type.
        path_types: integer ``[B, N, N]``, path type of each pair of atoms, from 0 to ``W - 1``.
        lengths: integer ``[B]``, number of atoms.

    Returns:
        ``[B, H, N + 1, N + 1]``, dtype of ``values``; row and column 0 belong to the graph token. Padding is 0 and,
        on the CPU, so are weights below 1e-28.
    """
    valid = torch.arange(path_types.shape[1] + 1, device=path_types.device) <= lengths[:, None]
    attn_bias = path_bias(values, path_types).masked_fill(~valid[:, None, None, :], -torch.inf)
    return torch.softmax(attn_bias, dim=-1).masked_fill(~valid[:, None, :, None], 0)


def path_bias(values: Tensor, path_types: Tensor) -> Tensor:
    """Expand the bias of path types to all pairs of rows.

    Args:
        values, path_types: as for :func:`path_softmax`.

    Returns:
        ``[B, H, N + 1, N + 1]``, dtype of ``values``; undefined in the padding.
    """
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


# Not a custom operator of torch.library: its first call loads the compiler, which takes longer than predicting a
# molecule.
@path_softmax.backend("numba", dtypes=(torch.float32, torch.float64), fits=_fits)
def _numba(values: Tensor, path_types: Tensor, lengths: Tensor) -> Tensor:
    lengths = lengths.clamp(-1, path_types.shape[1])  # compiled code does not check bounds
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
        # Partial sums of a fixed number of samples, so that the result does not depend on the number of threads.
        chunks = -(-len(lengths) // _CHUNK)
        sums = np.zeros((chunks, ctx.num_values, result.shape[1]))
        upstream, types = grad.contiguous().numpy(), path_types.contiguous().numpy()
        arguments = upstream, result.numpy(), types, lengths.numpy(), sums
        parallel_for(lambda begin, end: _backward(*arguments, begin, end), chunks, values=4 * result.numel())
        return torch.from_numpy(sums.sum(axis=0)).to(result.dtype), None, None


@njit(cache=True, nogil=True)
def _extremes(path_types, values):
    """Return the smallest and largest path type and the largest difference of two biases of a head."""
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
                else:  # the unnormalised weights may underflow in float32
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
