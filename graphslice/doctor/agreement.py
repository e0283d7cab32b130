"""Whether what makes a model fast on this machine computes what plain torch does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphslice.batch import GraphBatch
from graphslice.data.collate import collate_rows
from graphslice.data.store import GraphStore
from graphslice.nn import GraphTransformer
from graphslice.ops.dispatch import DEVICE_TYPES, OPERATORS, Operator, reference_only
from graphslice.ops.program import programs_disabled

#: The name of the blocks as one program of kernels that are right each by itself.
PROGRAM = "program"
# The largest difference that rounding makes, relative to the largest prediction and to the length of the gradient: two
# paths round differently, so values that are nearly equal may be sorted differently, and their gradients exchanged.
_TOLERANCES = {torch.float32: (1e-3, 1e-2), torch.bfloat16: (0.1, 0.2), torch.float16: (0.1, 0.2)}
# The golden ratio: the fractional parts of its multiples are all different.
_GOLDEN = (5**0.5 - 1) / 2


@dataclass
class Step:
    """What a step without dropout computes: the predictions ``[B, T]`` and the gradient of every parameter."""

    predictions: Tensor
    gradients: list[Tensor]


def extreme_batches(store: GraphStore, rows: np.ndarray, settings: dict[str, Any]) -> list[GraphBatch]:
    """The four smallest molecules of some rows of a store, and the four largest; ``settings`` of ``collate_rows``."""
    order = rows[np.argsort(store.sizes[rows], kind="stable")]
    return [collate_rows(store, some, **settings) for some in (order[:4], order[-4:])]


def compute_step(model: GraphTransformer, batch: GraphBatch, dtype: torch.dtype = torch.float32) -> Step:
    """The predictions of a batch, and the gradients of their weighted sum, without dropout.

    The weights are different, so that exchanged molecules are noticed, and positive: the gradients of several rows of
    one molecule do not cancel.

    Args:
        model: on the device of the batch; neither its gradients nor its mode change.
        batch: of molecules.
        dtype: of the products; other than float32 by autocast.
    """
    training, config = model.training, model.config
    # Nothing but dropout depends on the mode; a model without it stays as it is, for each mode is compiled by itself.
    rates = (config.dropout, config.input_dropout, config.attention_dropout, config.activation_dropout)
    if max(rates) > 0 or config.descriptors > 0:
        model.eval()
    device = batch.lengths.device.type
    torch.compiler.cudagraph_mark_step_begin()
    try:
        # As Lightning does: torch.compile compiles anew for another cache_enabled.
        with torch.autocast(device, dtype, cache_enabled=False) if dtype != torch.float32 else nullcontext():
            predictions = model.standardised(batch)
        weights = 1 + torch.arange(predictions.numel(), device=predictions.device) * _GOLDEN % 1
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = (predictions.flatten() * weights).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        # Copies: what a CUDA graph computes lies in memory that its next run writes again.
        return Step(
            predictions.detach().to(torch.float32, copy=True), [g.to(torch.float32, copy=True) for g in gradients]
        )
    finally:
        model.train(training)


def step_mismatch(found: Step, expected: Step, dtype: torch.dtype = torch.float32) -> str | None:
    """None where two steps agree within what rounding in ``dtype`` makes, else by how much they do not."""
    largest_prediction, largest_gradient = _TOLERANCES[dtype]
    apart, far = relative_differences(found, expected)
    if not apart <= largest_prediction:  # nan too
        return f"predictions differ by {100 * apart:.2g}%"
    if not far <= largest_gradient:
        return f"gradients differ by {100 * far:.2g}%"
    return None


def relative_differences(found: Step, expected: Step) -> tuple[float, float]:
    """The largest difference of a prediction over the largest prediction, and the length of the difference of the
    gradients over that of the expected one; nan where a number is not finite."""
    apart = _ratio((found.predictions - expected.predictions).abs().max(), expected.predictions.abs().max())
    pairs = list(zip(found.gradients, expected.gradients, strict=True))
    far = _ratio(_length(one - other for one, other in pairs), _length(expected.gradients))
    return apart, far


def _length(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([tensor.double().square().sum().cpu() for tensor in tensors]).sum().sqrt()


def _ratio(part: Tensor, whole: Tensor) -> float:
    part, whole = part.double().cpu(), whole.double().cpu()
    return float(part / whole) if whole > 0 else 0.0 if part == 0 else float("inf")


def faulty_backends(
    model: GraphTransformer, batches: Sequence[GraphBatch], dtype: torch.dtype = torch.float32
) -> dict[str, str]:
    """Which operators' backends fail in a model or compute something else than plain torch, or all together, and how.

    Args:
        model: on the device of the batches.
        batches: of small and of large molecules.
        dtype: as for :func:`compute_step`.

    Returns:
        By the name of the operator, or :data:`PROGRAM`, ``"the triton backend: predictions differ by 12%"``; empty
        where all is well, or where plain torch fails too or gives no numbers.
    """
    found: dict[str, str] = {}
    for batch in batches:
        with reference_only():
            expected = compute_step(model, batch, dtype)
        if not all(bool(each.isfinite().all()) for each in (expected.predictions, *expected.gradients)):
            continue
        wrong = _problem(lambda: compute_step(model, batch, dtype), expected, dtype)  # noqa: B023
        if wrong is None:
            continue
        before = len(found)
        for op in OPERATORS.values():
            for name in _backends_on(op, batch.lengths.device.type):
                reason = _problem(lambda: _step_with(op, name, model, batch, dtype), expected, dtype)  # noqa: B023
                if reason is not None:
                    found[op.__name__] = f"the {name} backend: {reason}"
        if len(found) == before:  # no kernel by itself
            with programs_disabled():
                alone = _problem(lambda: compute_step(model, batch, dtype), expected, dtype)  # noqa: B023
            if alone is None:
                found[PROGRAM] = f"the blocks as one program: {wrong}"
    return found


def _backends_on(op: Operator, device_type: str) -> list[str]:
    return [name for name in op.backends if DEVICE_TYPES[name] == device_type]


def _step_with(op: Operator, backend: str, model: GraphTransformer, batch: GraphBatch, dtype: torch.dtype) -> Step:
    """A step in which one backend of one operator is used, and plain torch for all else."""
    with reference_only(but=(op, backend)):
        return compute_step(model, batch, dtype)


def compile_checked(
    model: GraphTransformer, batches: Sequence[GraphBatch], dtype: torch.dtype = torch.float32, **options: Any
) -> str | None:
    """Compile a model's blocks; where they fail on some batches or compute something else, do not.

    Args:
        model: on the device of the batches.
        batches: of one number of samples. Compiling takes seconds to minutes for every number of rows; those of these
            are compiled first.
        dtype: as for :func:`compute_step`.
        options: of :meth:`~graphslice.nn.GraphTransformer.compile_blocks`.

    Returns:
        None, or why the model goes on as before.
    """
    reason: str | None = None
    try:
        expected = [compute_step(model, batch, dtype) for batch in batches]
        if not model.compile_blocks(len(batches[0]), **options):
            reason = "this machine has no compiler for them"
        for batch, step in zip(batches, expected, strict=True):
            reason = reason or _problem(lambda: compute_step(model, batch, dtype), step, dtype)  # noqa: B023
    except torch.OutOfMemoryError:  # the eager steps may still fit: CUDA graphs keep what they compute with
        reason = "out of memory"
    except Exception as error:  # of what compiles
        reason = f"{type(error).__name__}: {one_line(error)}"
    if reason is not None:
        model.run_eagerly()
        torch.compiler.reset()  # which holds the graphs, and they their memory
        torch.cuda.empty_cache()
    return reason


def _problem(step: Callable[[], Step], expected: Step, dtype: torch.dtype) -> str | None:
    try:
        return step_mismatch(step(), expected, dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises
        return f"{type(error).__name__}: {one_line(error)}"


def one_line(error: Exception) -> str:
    """What an exception says, cut to a line."""
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= 160 else text[:157] + "..."
