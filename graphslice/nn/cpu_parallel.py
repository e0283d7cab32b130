"""The blocks on a CPU: some molecules on each core, forward and backward.

Cores that share every product of a batch wait for each other after each; cores that take molecules
of their own meet once forward and once backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graphslice.ops.dropout import drawing_from
from graphslice.ops.threads import one_core_each

Run = Callable[[Tensor, dict[str, Tensor]], Tensor]

# Numbers that the gradients of all parts may take together; the fewest numbers that are worth a part:
# below, Python's own work, which a second core cannot share, is most of it.
_GRADIENTS, _LEAST = 1 << 27, 1 << 17


def parts_of(x: Tensor, parameters: int) -> int:
    """Into how many parts a batch ``[B, ...]`` is best cut: one a core on a CPU, if large, and the gradients fit."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return 1
    parts = min(torch.get_num_threads(), len(x), x.numel() // _LEAST)
    return parts if parts > 1 and parts * parameters <= _GRADIENTS else 1


def run_in_parts(run: Run, x: Tensor, given: dict[str, Tensor], parameters: Sequence[Tensor], parts: int) -> Tensor:
    """``run(x, given)``, computed for some samples on each core.

    Args:
        run: treats every sample by itself.
        x: ``[B, ...]``.
        given: other tensors ``[B, ...]`` that it reads.
        parameters: the tensors beside these that it differentiates by.
        parts: how many, at most B.

    Returns:
        ``[B, ...]``. Backward runs on each core too; it can be run once.
    """
    names = list(given)
    inputs = [x, *given.values()]
    ends = [len(x) * part // parts for part in range(parts + 1)]
    slices = [slice(*ends[part : part + 2]) for part in range(parts)]
    inference, autocast = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu")
    # What is dropped depends on torch's generator alone, not on which core is the first.
    seeds = torch.empty(parts, dtype=torch.int64).random_().tolist()

    def run_part(part: int, inputs: Sequence[Tensor], grad: bool) -> Tensor:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", precision, enabled=autocast),
            drawing_from(seeds[part]),
        ):
            return run(inputs[0], dict(zip(names, inputs[1:], strict=True)))

    if not torch.is_grad_enabled():
        cut = [[tensor[where] for tensor in inputs] for where in slices]
        return torch.cat(one_core_each(lambda part: run_part(part, cut[part], False), range(parts)))
    return _Parts.apply(run_part, slices, len(inputs), *inputs, *parameters)


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run_part, slices: list[slice], count: int, *tensors: Tensor) -> Tensor:
        inputs, parameters = tensors[:count], tensors[count:]
        wanted = ctx.needs_input_grad[3 : 3 + count]
        ctx.parameters = [p for p in parameters if p.requires_grad]
        ctx.slices, ctx.wanted = slices, wanted
        ctx.kept = [p.requires_grad for p in parameters]

        def forward(part: int) -> tuple[Tensor, list[Tensor]]:
            leaves = [
                tensor.detach()[slices[part]].requires_grad_(wish) for tensor, wish in zip(inputs, wanted, strict=True)
            ]
            return run_part(part, leaves, True), leaves

        ctx.graphs = one_core_each(forward, range(len(slices)))
        return torch.cat([out.detach() for out, _ in ctx.graphs])

    @staticmethod
    def backward(ctx, grad: Tensor):
        graphs, ctx.graphs = ctx.graphs, None
        if graphs is None:
            raise RuntimeError("the gradients of this batch were computed already")

        def backward(part: int) -> tuple[Tensor | None, ...]:
            out, leaves = graphs[part]
            asked = [leaf for leaf in leaves if leaf.requires_grad] + ctx.parameters
            return torch.autograd.grad(out, asked, grad[ctx.slices[part]], allow_unused=True)

        found = one_core_each(backward, range(len(graphs)))
        inputs = iter(zip(*(grads[: sum(ctx.wanted)] for grads in found), strict=True))
        of_inputs = [_joined(next(inputs)) if wish else None for wish in ctx.wanted]
        parameters = iter(zip(*(grads[sum(ctx.wanted) :] for grads in found), strict=True))
        of_parameters = [_summed(next(parameters)) if kept else None for kept in ctx.kept]
        return None, None, None, *of_inputs, *of_parameters


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    return None if parts[0] is None else torch.cat(parts)


def _summed(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """In order, so that the last bits do not depend on which core was the first."""
    total = parts[0]
    for part in parts[1:]:
        total = part if total is None else total.add_(part)
    return total
