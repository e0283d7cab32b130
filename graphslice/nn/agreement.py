"""Comparison of fast backends, traced programs and compiled blocks with plain torch on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphslice.batch import GraphBatch
from graphslice.nn.compiled import UncompiledWarning
from graphslice.nn.mixers.user_mixers import is_user_mixer
from graphslice.nn.model import GraphTransformer
from graphslice.ops.dispatch import DEVICE_TYPES, OPERATORS, reference_only
from graphslice.program.run import programs_disabled

#: Key of :func:`faulty_backends` for a traced program that is wrong although each of its kernels is right.
PROGRAM = "program"
# Largest differences explained by rounding, relative to the largest prediction and to the norm of the gradient. They
# are not tiny: values that are nearly equal may be sorted differently, which exchanges their gradients.
_TOLERANCES = {torch.float32: (1e-3, 1e-2), torch.bfloat16: (0.1, 0.2), torch.float16: (0.1, 0.2)}
# Reciprocal of the golden ratio: the fractional parts of its multiples are all different.
_GOLDEN = (5**0.5 - 1) / 2


@dataclass
class Step:
    """Results of a training step without dropout."""

    predictions: Tensor  # standardised, float32 [B, T]
    gradients: list[Tensor]  # float32, of all trainable parameters


def compute_step(model: GraphTransformer, batch: GraphBatch, dtype: torch.dtype = torch.float32) -> Step:
    """Compute the predictions of a batch and the gradients of their weighted sum, without dropout; the model's
    gradients and mode are not changed. The weights are all different, so that exchanged molecules are noticed, and
    positive, so that the gradients of several rows with the same molecule do not cancel. Matrix products are in
    ``dtype``."""
    training, config = model.training, model.config
    # Only dropout depends on the mode, and what a user's mixer does. A model without them keeps its mode, since
    # torch.compile compiles each mode separately.
    rates = (config.dropout, config.input_dropout, config.attention_dropout, config.activation_dropout)
    if max(rates) > 0 or config.descriptors > 0 or is_user_mixer(config.mixer):
        model.eval()
    device = batch.lengths.device.type
    torch.compiler.cudagraph_mark_step_begin()
    try:
        # cache_enabled as in training, because torch.compile would compile again for another value.
        with torch.autocast(device, dtype, cache_enabled=False) if dtype != torch.float32 else nullcontext():
            predictions = model.standardised(batch)
        weights = 1 + torch.arange(predictions.numel(), device=predictions.device) * _GOLDEN % 1
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total = (predictions.flatten() * weights).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        # Copies, because the next run of a CUDA graph overwrites its outputs.
        return Step(
            predictions.detach().to(torch.float32, copy=True), [g.to(torch.float32, copy=True) for g in gradients]
        )
    finally:
        model.train(training)


def step_mismatch(actual: Step, expected: Step, dtype: torch.dtype = torch.float32) -> str | None:
    """Return None if two steps agree within the rounding of ``dtype``, else ``"predictions differ by 12%"``: relative
    to the largest prediction, or in the L2 norm of the gradients."""
    prediction_tolerance, gradient_tolerance = _TOLERANCES[dtype]
    error = _ratio((actual.predictions - expected.predictions).abs().max(), expected.predictions.abs().max())
    if not error <= prediction_tolerance:  # true for nan too
        return f"predictions differ by {100 * error:.2g}%"
    pairs = zip(actual.gradients, expected.gradients, strict=True)
    error = _ratio(_norm(one - other for one, other in pairs), _norm(expected.gradients))
    if not error <= gradient_tolerance:
        return f"gradients differ by {100 * error:.2g}%"
    return None


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([tensor.cpu().double().square().sum() for tensor in tensors]).sum().sqrt()


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    numerator, denominator = numerator.cpu().double(), denominator.cpu().double()
    return float(numerator / denominator) if denominator > 0 else 0.0 if numerator == 0 else float("inf")


def faulty_backends(
    model: GraphTransformer, batches: Sequence[GraphBatch], dtype: torch.dtype = torch.float32
) -> dict[str, str]:
    """Find the backends that fail in a model or differ from plain torch: the faults, such as
    ``"the triton backend: predictions differ by 12%"``, by operator name, or by :data:`PROGRAM` for the traced
    program; empty too if plain torch is not finite."""
    faults: dict[str, str] = {}
    for batch in batches:
        with reference_only():
            expected = compute_step(model, batch, dtype)
        if not all(bool(tensor.isfinite().all()) for tensor in (expected.predictions, *expected.gradients)):
            continue
        problem = _problem(model, batch, expected, dtype)
        if problem is None:
            continue
        before, device = len(faults), batch.lengths.device.type
        for op in OPERATORS.values():
            for name in (name for name in op.backends if DEVICE_TYPES[name] == device):
                with reference_only(but=(op, name)):
                    reason = _problem(model, batch, expected, dtype)
                if reason is not None:
                    faults[op.__name__] = f"the {name} backend: {reason}"
        if len(faults) == before:  # no single backend is at fault
            with programs_disabled():
                problem_without = _problem(model, batch, expected, dtype)
            if problem_without is None:
                faults[PROGRAM] = f"the traced program of the blocks: {problem}"
    return faults


def compile_checked(
    model: GraphTransformer, batches: Sequence[GraphBatch], dtype: torch.dtype = torch.float32, **options: Any
) -> str | None:
    """Compile a model's blocks and verify them; undo it and return the reason if they fail or differ from eager
    execution. Each number of rows is compiled, in seconds to minutes; ``options``: of
    :meth:`~graphslice.nn.GraphTransformer.compile_blocks`."""
    reason: str | None = None
    try:
        expected = [compute_step(model, batch, dtype) for batch in batches]
        if not model.compile_blocks(len(batches[0]), **options):
            reason = "this machine has no compiler"
        with warnings.catch_warnings():
            warnings.simplefilter("error", UncompiledWarning)  # an eager step would agree
            for batch, step in zip(batches, expected, strict=True):
                reason = reason or _problem(model, batch, step, dtype)
    except torch.OutOfMemoryError:  # eager steps may still fit: CUDA graphs keep their memory
        reason = "out of memory"
    except Exception as error:  # compilers raise many kinds
        reason = f"{type(error).__name__}: {one_line(error)}"
    if reason is not None:
        model.run_eagerly()
        torch.compiler.reset()  # frees the CUDA graphs and their memory
        torch.cuda.empty_cache()
    return reason


def _problem(model: GraphTransformer, batch: GraphBatch, expected: Step, dtype: torch.dtype) -> str | None:
    try:
        return step_mismatch(compute_step(model, batch, dtype), expected, dtype)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers and drivers raise many kinds
        return f"{type(error).__name__}: {one_line(error)}"


def one_line(error: Exception) -> str:
    """Return the message of an exception as one line of at most 160 characters."""
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= 160 else text[:157] + "..."
