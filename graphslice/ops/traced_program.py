"""Traced programs as functions with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphslice.ops import kernels
from graphslice.ops.base_tracer import (
    ATOMS,
    BONDS,
    DEGREES,
    GRAD_GRAPH,
    GRAD_OUT,
    GRAPH,
    LENGTHS,
    OUT,
    ProgramTrace,
)
from graphslice.ops.dropout import draw_random_integers
from graphslice.ops.program import Part, share_ends


class Inputs(NamedTuple):
    """Inputs of a program for B samples of N rows; all tensors are contiguous.

    Attributes:
        lengths: int64 ``[B]``.
        graph: float32 ``[B, H, N, N]``, attention weights or bias.
        atoms: uint8 ``[B, N - 1, 9]``.
        degrees: uint8 ``[B, N - 1]``.
        bonds: int16 ``[B, N, N]``, valid bond codes; None for models without message passing along bonds.
    """

    lengths: Tensor
    graph: Tensor
    atoms: Tensor
    degrees: Tensor
    bonds: Tensor | None = None


class _State(NamedTuple):
    """State saved for backward; ``held`` keeps tensors alive whose addresses are among the arguments."""

    arguments: list[int]
    inputs: Inputs
    held: tuple[Tensor, ...]
    kept: Tensor
    ends: list[int]


class Program:
    """Traced program, callable forward and backward.

    Args:
        trace: result of the tracer.
    """

    def __init__(self, trace: ProgramTrace) -> None:
        self._trace = trace
        self._owned = [owned for owned, _, _ in trace.parameters]
        self._parameter_arguments = [argument.place for _, argument, _ in trace.parameters]
        self._gradient_arguments = [gradient.place for _, _, gradient in trace.parameters]
        sizes = [-(-owned.shape.numel() // 16) * 16 for owned in self._owned]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size = sum(sizes)
        self._forward = Part(trace.forward, trace.kept)
        self._backward = Part(trace.backward, trace.kept)
        arguments = {id(owned): argument for owned, argument, _ in trace.parameters}
        self._transposed_arguments: list[tuple[int, int]] = []
        self._transposed_size = 0
        for owned, argument in trace.transposes:
            self._transposed_arguments.append((argument.place, 4 * self._transposed_size))
            self._transposed_size += owned.shape.numel()
        self._transpose = Part(
            [
                (kernels.transposed, (arguments[id(owned)], argument, *owned.shape))
                for owned, argument in trace.transposes
            ],
            (),
        )

    @property
    def parameters(self) -> list[Tensor]:
        """Return the tensors whose gradients the program computes, in order."""
        return [owned.tensor for owned in self._owned]

    @property
    def shapes(self) -> list[torch.Size]:
        """Return the shapes of the parameters at the time of tracing."""
        return [owned.shape for owned in self._owned]

    def run(self, inputs: Inputs, parameters: Sequence[Tensor]) -> tuple[Tensor, _State]:
        """Run the forward pass.

        Args:
            inputs: of the batch.
            parameters: tensors of :attr:`parameters`, contiguous.

        Returns:
            The output, and the state for :meth:`gradients`.
        """
        samples, width, size = len(inputs.lengths), inputs.graph.shape[-1], self._trace.out
        out = torch.empty((samples, width, size.row) if size.row else (samples, size.sample))
        transposes = torch.empty(self._transposed_size)
        kept = torch.empty(samples * self._forward.kept_bytes(width), dtype=torch.uint8)
        arguments = [0] * self._trace.arguments
        tensors = {LENGTHS: inputs.lengths, GRAPH: inputs.graph, ATOMS: inputs.atoms, DEGREES: inputs.degrees, OUT: out}
        if inputs.bonds is not None:
            tensors[BONDS] = inputs.bonds
        for place, tensor in tensors.items():
            arguments[place] = tensor.data_ptr()
        for place, parameter in zip(self._parameter_arguments, parameters, strict=True):
            arguments[place] = parameter.data_ptr()
        for place, offset in self._transposed_arguments:
            arguments[place] = transposes.data_ptr() + offset
        if self._trace.keys:
            numbers = draw_random_integers(len(self._trace.keys))
            for place, number in zip(self._trace.keys, numbers, strict=True):
                arguments[place] = number
        ends = share_ends(samples, width)
        self._transpose.run([arguments], 0, 1, [1])
        self._forward.run([arguments] * len(ends), kept.data_ptr(), width, ends)
        return out, _State(arguments, inputs, (transposes, *parameters), kept, ends)

    def gradients(self, state: _State, grad: Tensor) -> tuple[Tensor | None, list[Tensor]]:
        """Run the backward pass and return the gradients of the graph (None if it has none) and of the parameters."""
        graph = state.inputs.graph
        grad_graph = torch.empty_like(graph) if self._trace.reaches_graph else None
        sums = np.zeros((len(state.ends), self._size), np.float32)  # numpy, since torch's threads would keep spinning
        arguments = []
        for i in range(len(state.ends)):
            own = list(state.arguments)
            own[GRAD_OUT], own[GRAD_GRAPH] = grad.data_ptr(), 0 if grad_graph is None else grad_graph.data_ptr()
            at = sums[i].ctypes.data
            for place, offset in zip(self._gradient_arguments, self._offsets, strict=True):
                own[place] = at + 4 * offset
            arguments.append(own)
        self._backward.run(arguments, state.kept.data_ptr(), graph.shape[-1], state.ends)
        for partial_sum in sums[1:]:
            sums[0] += partial_sum
        total = torch.from_numpy(sums[0])
        gradients = [
            total.as_strided(owned.shape, owned.stride, offset)
            for owned, offset in zip(self._owned, self._offsets, strict=True)
        ]
        return grad_graph, gradients
