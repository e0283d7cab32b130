"""A recording as a function with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphslice.ops import kernels
from graphslice.ops.dropout import draw_numbers
from graphslice.ops.program import Part, shares_of
from graphslice.ops.recorder import (
    ATOMS,
    DEGREES,
    GRAD_GRAPH,
    GRAD_OUT,
    GRAD_ROWS,
    GRAPH,
    LENGTHS,
    OUT,
    ROWS,
    Recording,
)


class Inputs(NamedTuple):
    """What a program reads of B samples of N rows, contiguous.

    Attributes:
        lengths: int64 ``[B]``.
        graph: float32 ``[B, H, N, N]``.
        rows: float32 ``[B, N, C]``; None where they are made of the atoms.
        atoms: uint8 ``[B, N - 1, 9]``, or None.
        degrees: uint8 ``[B, N - 1]``, or None.
    """

    lengths: Tensor
    graph: Tensor
    rows: Tensor | None = None
    atoms: Tensor | None = None
    degrees: Tensor | None = None


class _State(NamedTuple):
    """What backward needs of a forward pass; the tensors whose addresses are among the arguments stay with it."""

    arguments: list[int]
    held: tuple[Tensor | None, ...]
    kept: Tensor
    ends: list[int]


class Program:
    """What has been recorded, as a function."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._owned = [owned for owned, _, _ in recording.parameters]
        self._here = [here.place for _, here, _ in recording.parameters]
        self._there = [there.place for _, _, there in recording.parameters]
        sizes = [-(-owned.shape.numel() // 16) * 16 for owned in self._owned]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self._size = sum(sizes)
        self._forward = Part(recording.forward, recording.kept)
        self._backward = Part(recording.backward, recording.kept)
        here = {id(owned): argument for owned, argument, _ in recording.parameters}
        self._turned: list[tuple[int, int]] = []
        self._turned_size = 0
        for owned, argument in recording.transposes:
            self._turned.append((argument.place, 4 * self._turned_size))
            self._turned_size += owned.shape.numel()
        self._transpose = Part(
            [
                (kernels.transposed, (here[id(owned)], argument, *owned.shape))
                for owned, argument in recording.transposes
            ],
            (),
        )

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that it differentiates by, in order."""
        return [owned.tensor for owned in self._owned]

    def run(self, inputs: Inputs, parameters: Sequence[Tensor]) -> tuple[Tensor, _State]:
        """What comes out, and what :meth:`gradients` needs.

        Args:
            inputs: of the batch.
            parameters: those of :attr:`parameters`, contiguous.
        """
        samples, width, size = len(inputs.lengths), inputs.graph.shape[-1], self._recording.out
        out = torch.empty((samples, width, size.row) if size.row else (samples, size.sample))
        turned = torch.empty(self._turned_size)
        kept = torch.empty(samples * self._forward.kept_bytes(width), dtype=torch.uint8)
        arguments = [0] * self._recording.arguments
        given = {LENGTHS: inputs.lengths, GRAPH: inputs.graph, ROWS: inputs.rows}
        given |= {ATOMS: inputs.atoms, DEGREES: inputs.degrees, OUT: out}
        for place, tensor in given.items():
            arguments[place] = 0 if tensor is None else tensor.data_ptr()
        for place, parameter in zip(self._here, parameters, strict=True):
            arguments[place] = parameter.data_ptr()
        for place, offset in self._turned:
            arguments[place] = turned.data_ptr() + offset
        if self._recording.keys:
            numbers = draw_numbers(len(self._recording.keys))
            for place, number in zip(self._recording.keys, numbers, strict=True):
                arguments[place] = number
        ends = shares_of(samples, width)
        self._transpose.run([arguments], 0, 1, [1])
        self._forward.run([arguments] * len(ends), kept.data_ptr(), width, ends)
        return out, _State(arguments, (*inputs, out, turned, *parameters), kept, ends)

    def gradients(self, state: _State, grad: Tensor) -> tuple[Tensor | None, Tensor | None, list[Tensor]]:
        """The gradients of the rows and of the graph, None where they have none, and of the parameters."""
        _, graph, rows, *_ = state.held
        grad_rows = torch.empty_like(rows) if rows is not None and self._recording.reaches_rows else None
        grad_graph = torch.empty_like(graph) if graph is not None and self._recording.reaches_graph else None
        sums = np.zeros((len(state.ends), self._size), np.float32)  # not by torch, whose threads would stay awake
        arguments = []
        for share in range(len(state.ends)):
            own = list(state.arguments)
            for place, tensor in ((GRAD_OUT, grad), (GRAD_ROWS, grad_rows), (GRAD_GRAPH, grad_graph)):
                own[place] = 0 if tensor is None else tensor.data_ptr()
            at = sums[share].ctypes.data
            for place, offset in zip(self._there, self._offsets, strict=True):
                own[place] = at + 4 * offset
            arguments.append(own)
        assert graph is not None
        self._backward.run(arguments, state.kept.data_ptr(), graph.shape[-1], state.ends)
        for more in sums[1:]:
            sums[0] += more
        total = torch.from_numpy(sums[0])
        found = [
            total.as_strided(owned.shape, owned.stride, offset)
            for owned, offset in zip(self._owned, self._offsets, strict=True)
        ]
        return grad_rows, grad_graph, found
