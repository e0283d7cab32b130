"""Data-parallel execution of the blocks on CPU cores, forward and backward.

Cores that share every matrix product synchronise after each of them. Cores that process different molecules
synchronise only once in the forward and once in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import dropout_seed
from graphslice.ops.threads import cores, map_one_core_each

Run = Callable[[Tensor, dict[str, Tensor]], Tensor]

#: Error message of a second backward pass through a batch.
BACKWARD_TWICE = "the gradients of this batch were already computed: sum the losses, and call backward once"

# Maximum number of gradient values of all chunks in total, and minimum number of input values of a chunk: for smaller
# chunks the overhead of Python, which holds one core at a time, dominates.
_MAX_GRADIENT_VALUES, _MIN_CHUNK_VALUES = 1 << 27, 1 << 17


def num_chunks(x: Tensor, parameters: int) -> int:
    """Choose the number of chunks into which a batch is split, one per CPU core.

    Args:
        x: ``[B, ...]``, the input of the blocks.
        parameters: number of values of the parameters, which every chunk needs as memory for gradients.

    Returns:
        1 on another device, inside compiled code, for small batches, and if the gradients would take too much memory.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return 1
    chunks = min(cores(), len(x), x.numel() // _MIN_CHUNK_VALUES)
    return chunks if chunks > 1 and chunks * parameters <= _MAX_GRADIENT_VALUES else 1


def run_in_chunks(run: Run, x: Tensor, tensors: dict[str, Tensor], parameters: Sequence[Tensor], chunks: int) -> Tensor:
    """Compute ``run(x, tensors)`` in chunks of the batch, one per core.

    Args:
        run: a function that treats every sample independently.
        x: ``[B, ...]``.
        tensors: further inputs by name, ``[B, ...]`` each.
        parameters: the other tensors that gradients are computed for.
        chunks: number of chunks, at most B.

    Returns:
        The result of ``run``, ``[B, ...]``. The backward pass uses all cores too, and can be run only once.
    """
    names = list(tensors)
    inputs = [x, *tensors.values()]
    ends = [len(x) * chunk // chunks for chunk in range(chunks + 1)]
    slices = [slice(*ends[chunk : chunk + 2]) for chunk in range(chunks)]
    inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu")
    # Seeds drawn here make dropout depend on torch's generator alone, not on the timing of the cores.
    seeds = torch.empty(chunks, dtype=torch.int64).random_().tolist()

    def run_chunk(chunk: int, inputs: Sequence[Tensor], grad: bool) -> Tensor:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", precision, enabled=autocast),
            dropout_seed(seeds[chunk]),
        ):
            return run(inputs[0], dict(zip(names, inputs[1:], strict=True)))

    if not torch.is_grad_enabled():
        cut = [[tensor[where] for tensor in inputs] for where in slices]
        return torch.cat(map_one_core_each(lambda chunk: run_chunk(chunk, cut[chunk], False), range(chunks)))
    return _ChunkedRun.apply(run_chunk, slices, len(inputs), *inputs, *parameters)


class _ChunkedRun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_chunk, slices: list[slice], count: int, *tensors: Tensor) -> Tensor:
        inputs, parameters = tensors[:count], tensors[count:]
        needs_gradient = ctx.needs_input_grad[3 : 3 + count]
        ctx.parameters = [p for p in parameters if p.requires_grad]
        ctx.slices, ctx.needs_gradient = slices, needs_gradient
        ctx.trainable = [p.requires_grad for p in parameters]

        def forward(chunk: int) -> tuple[Tensor, list[Tensor]]:
            leaves = [
                tensor.detach()[slices[chunk]].requires_grad_(required)
                for tensor, required in zip(inputs, needs_gradient, strict=True)
            ]
            return run_chunk(chunk, leaves, True), leaves

        ctx.graphs = map_one_core_each(forward, range(len(slices)))
        return torch.cat([out.detach() for out, _ in ctx.graphs])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        graphs, ctx.graphs = ctx.graphs, None
        if graphs is None:
            raise RuntimeError(BACKWARD_TWICE)

        def backward(chunk: int) -> tuple[Tensor | None, ...]:
            out, leaves = graphs[chunk]
            wanted = [leaf for leaf in leaves if leaf.requires_grad] + ctx.parameters
            return torch.autograd.grad(out, wanted, grad[ctx.slices[chunk]], allow_unused=True)

        chunk_grads: list[tuple[Tensor | None, ...]] = map_one_core_each(backward, range(len(graphs)))
        inputs = iter(zip(*(grads[: sum(ctx.needs_gradient)] for grads in chunk_grads), strict=True))
        input_grads = [_concatenate(next(inputs)) if required else None for required in ctx.needs_gradient]
        parameters = iter(zip(*(grads[sum(ctx.needs_gradient) :] for grads in chunk_grads), strict=True))
        parameter_grads = [_sum(next(parameters)) if trainable else None for trainable in ctx.trainable]
        return None, None, None, *input_grads, *parameter_grads


def _concatenate(chunks: tuple[Tensor | None, ...]) -> Tensor | None:
    """Concatenate the gradients of an input, which either all chunks or none use."""
    return None if chunks[0] is None else torch.cat([chunk for chunk in chunks if chunk is not None])


def _sum(chunks: tuple[Tensor | None, ...]) -> Tensor | None:
    """Sum the gradients of a parameter in order of the chunks, so that rounding does not depend on timing."""
    total = chunks[0]
    for chunk in chunks[1:]:
        total = chunk if total is None or chunk is None else total.add_(chunk)
    return total
