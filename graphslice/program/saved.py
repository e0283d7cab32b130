"""Programs as plain data, and their execution on arrays, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np

from graphslice.program import kernels as _register_kernels  # noqa: F401
from graphslice.program.kernels.embedding import path_values
from graphslice.program.layout import Argument, Operand, Size, Value
from graphslice.program.run import KERNELS, Input, Program, address

#: Most rows of a molecule, graph token included, so that it stays in the L2 cache.
MAX_ROWS = 256
#: Weights from which :func:`path_biases` computes the biases of path types.
PATH_WEIGHTS = ("pairs.token.weight", "pairs.spatial.weight", "pairs.bond.weight", "pairs.position.weight")


def to_data(program: Program) -> dict[str, Any]:
    """Return a program without gradients as nested lists, dictionaries and numbers."""
    values: dict[Value, int] = {}

    def encode(operand: Operand) -> Any:
        if isinstance(operand, Value):
            return ["value", values.setdefault(operand, len(values))]
        if isinstance(operand, Argument):
            return ["argument", operand.place, *astuple(operand.step)]
        return ["size", *astuple(operand)] if isinstance(operand, Size) else int(operand)

    data: dict[str, Any] = {
        "inputs": [[encode(value), dtype, source] for value, dtype, source in program.inputs],
        "forward": [[kernel.__name__, [encode(o) for o in operands]] for kernel, operands in program.instructions],
        "arguments": program.num_arguments,
        "out": encode(program.out),
    }
    data["values"] = [
        [[encode(size) for size in value.shape], value.itemsize, encode(value.argument or 0), value.shared]
        for value in values
    ]
    return data


def from_data(data: Mapping[str, Any]) -> Program:
    """Invert :func:`to_data`; the data are trusted, such as those of a file that this user wrote."""
    values: list[Value] = []

    def decode(operand: Any) -> Any:
        if not isinstance(operand, list):
            return operand
        kind, *numbers = operand
        if kind == "value":
            return values[numbers[0]]
        return Size(*numbers) if kind == "size" else Argument(numbers[0], Size(*numbers[1:]))

    for shape, itemsize, argument, shared in data["values"]:
        values.append(Value(tuple(map(decode, shape)), itemsize, argument=decode(argument) or None, shared=shared))
    forward = [(KERNELS[name], [decode(operand) for operand in operands]) for name, operands in data["forward"]]
    inputs = [Input(decode(value), dtype, source) for value, dtype, source in data["inputs"]]
    return Program(inputs, forward, [], [], [], data["arguments"], decode(data["out"]))


class SavedProgram:
    """Program of a model in evaluation mode, from a batch to the readouts, without gradients; its sources are
    attributes of a batch and names of weights and ``buffers``. ``shapes`` are those of the weights that it reads, by
    name in the state dict."""

    def __init__(
        self,
        program: Program,
        buffers: Mapping[str, np.ndarray],
        max_path: int,  # bonds of a path that are encoded
        path_shapes: Mapping[str, tuple[int, ...]],  # of PATH_WEIGHTS
    ) -> None:
        self._program, self._buffers, self._max_path = program, buffers, max_path
        weights = {
            str(source): tuple(map(int, value.shape))
            for value, _, source in program.inputs
            if isinstance(source, str) and "." in source and source not in buffers
        }
        self.shapes = weights | {name: path_shapes[name] for name in PATH_WEIGHTS}
        self._sources = [str(source) for _, _, source in program.inputs]

    def run(self, inputs: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the readouts ``float32 [B, W]`` of the arrays of a :class:`~graphslice.batch.GraphBatch`;
        ``parameters``: weights by name in the state dict, float32 and contiguous, of the shapes of :attr:`shapes`."""
        lengths = inputs["lengths"]
        arrays = {
            **parameters,
            **self._buffers,
            **inputs,
            "row_lengths": lengths + 1,
            "path_types": inputs["path_types"].astype(np.int32),
            "values": path_biases(inputs, parameters, self._buffers["pairs.bond_rows"], self._max_path),
        }
        tensors = [np.ascontiguousarray(arrays[name]) for name in self._sources]
        out = np.empty((len(lengths), self._program.out.size.of(1)), np.float32)
        sources = [(address(array), array.shape) for array in tensors]
        self._program.forward(sources, address(out), len(lengths), inputs["path_types"].shape[1] + 1, _no_keys)
        return out


def _no_keys(count: int) -> list[int]:
    raise ValueError("a program with dropout is none of evaluation mode")


def path_biases(
    inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], bond_rows: np.ndarray, max_path: int
) -> np.ndarray:
    """Compute ``S + E`` of the graph token (row 0) and of the W path types of a batch: ``float32 [W + 1, H]``."""
    token, spatial, bond, position = (weights[name] for name in PATH_WEIGHTS)
    heads = token.shape[1]
    matrices = position.reshape(-1, heads, heads)[:max_path]
    paths = [np.ascontiguousarray(inputs[f"path_{name}"]) for name in ("distances", "ptr", "codes", "weights")]
    out = np.empty((len(paths[0]) + 1, heads), np.float32)
    bonds = np.empty((len(bond_rows), heads), np.float32)
    arrays = token, spatial, bond, np.ascontiguousarray(matrices), bond_rows, *paths, bonds, out
    sizes = (*bond_rows.shape, len(matrices), len(spatial), len(paths[0]), len(paths[2]), heads)
    path_values(tuple(map(address, arrays)), sizes)
    return out
