"""The blocks on a CPU: some molecules on each core, forward and backward.

Cores that share every product of a batch wait for each other after each; cores that take molecules
of their own meet once forward and once backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.dropout import dropout_seed
from graphslice.ops.threads import cores, map_one_core_each

Run = Callable[[Tensor, dict[str, Tensor]], Tensor]

#: What a second backward pass of a batch is told.
BACKWARD_TWICE = "the gradients of this batch were computed already: add up what they are of, and call backward once"

# Numbers that the gradients of all shares may take together; the fewest numbers that are worth a share:
# below, Python's own work, which a second core cannot share, is most of it.
_GRADIENTS, _MIN_CHUNK_VALUES = 1 << 27, 1 << 17


def num_chunks(x: Tensor, parameters: int) -> int:
    """Into how many shares a batch ``[B, ...]`` is best cut: one a core on a CPU, if large, and the gradients fit."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return 1
    shares = min(cores(), len(x), x.numel() // _MIN_CHUNK_VALUES)
    return shares if shares > 1 and shares * parameters <= _GRADIENTS else 1


def run_in_chunks(run: Run, x: Tensor, tensors: dict[str, Tensor], parameters: Sequence[Tensor], shares: int) -> Tensor:
    """``run(x, tensors)``, computed for some samples on each core.

    Args:
        run: treats every sample by itself.
        x: ``[B, ...]``.
        tensors: other tensors ``[B, ...]`` that it reads.
        parameters: the tensors beside these that it differentiates by.
        shares: how many, at most B.

    Returns:
        ``[B, ...]``. Backward runs on each core too; it can be run once.
    """
    names = list(tensors)
    inputs = [x, *tensors.values()]
    ends = [len(x) * share // shares for share in range(shares + 1)]
    slices = [slice(*ends[share : share + 2]) for share in range(shares)]
    inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu")
    # What is dropped depends on torch's generator alone, not on which core is the first.
    seeds = torch.empty(shares, dtype=torch.int64).random_().tolist()

    def run_share(share: int, inputs: Sequence[Tensor], grad: bool) -> Tensor:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", precision, enabled=autocast),
            dropout_seed(seeds[share]),
        ):
            return run(inputs[0], dict(zip(names, inputs[1:], strict=True)))

    if not torch.is_grad_enabled():
        cut = [[tensor[where] for tensor in inputs] for where in slices]
        return torch.cat(map_one_core_each(lambda share: run_share(share, cut[share], False), range(shares)))
    return _ChunkedRun.apply(run_share, slices, len(inputs), *inputs, *parameters)


class _ChunkedRun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_share, slices: list[slice], count: int, *tensors: Tensor) -> Tensor:
        inputs, parameters = tensors[:count], tensors[count:]
        needs_gradient = ctx.needs_input_grad[3 : 3 + count]
        ctx.parameters = [p for p in parameters if p.requires_grad]
        ctx.slices, ctx.needs_gradient = slices, needs_gradient
        ctx.kept = [p.requires_grad for p in parameters]

        def forward(share: int) -> tuple[Tensor, list[Tensor]]:
            leaves = [
                tensor.detach()[slices[share]].requires_grad_(wish)
                for tensor, wish in zip(inputs, needs_gradient, strict=True)
            ]
            return run_share(share, leaves, True), leaves

        ctx.graphs = map_one_core_each(forward, range(len(slices)))
        return torch.cat([out.detach() for out, _ in ctx.graphs])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        graphs, ctx.graphs = ctx.graphs, None
        if graphs is None:
            raise RuntimeError(BACKWARD_TWICE)

        def backward(share: int) -> tuple[Tensor | None, ...]:
            out, leaves = graphs[share]
            asked = [leaf for leaf in leaves if leaf.requires_grad] + ctx.parameters
            return torch.autograd.grad(out, asked, grad[ctx.slices[share]], allow_unused=True)

        found: list[tuple[Tensor | None, ...]] = map_one_core_each(backward, range(len(graphs)))
        inputs = iter(zip(*(grads[: sum(ctx.needs_gradient)] for grads in found), strict=True))
        of_inputs = [_concatenated(next(inputs)) if wish else None for wish in ctx.needs_gradient]
        parameters = iter(zip(*(grads[sum(ctx.needs_gradient) :] for grads in found), strict=True))
        of_parameters = [_summed(next(parameters)) if kept else None for kept in ctx.kept]
        return None, None, None, *of_inputs, *of_parameters


def _concatenated(shares: tuple[Tensor | None, ...]) -> Tensor | None:
    """The gradients of an input; all shares use it, or none."""
    return None if shares[0] is None else torch.cat([share for share in shares if share is not None])


def _summed(shares: tuple[Tensor | None, ...]) -> Tensor | None:
    """In order, so that the last bits do not depend on which core was the first."""
    total = shares[0]
    for share in shares[1:]:
        total = share if total is None or share is None else total.add_(share)
    return total
