"""Programs of whole models, run on arrays without torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphslice.program.kernels.embedding import path_values
from graphslice.program.run import Program, address

#: Most rows of a molecule, graph token included, so that it stays in the L2 cache.
MAX_ROWS = 256
# Weights from which :func:`path_biases` computes the biases of path types.
_PATH_WEIGHTS = ("pairs.token.weight", "pairs.spatial.weight", "pairs.bond.weight", "pairs.position.weight")


class SavedProgram:
    """Program of a model in evaluation mode, from a batch to the readouts, without gradients; its sources are
    attributes of a batch and names of weights and ``buffers``. Kernels check no bounds: weights must have the
    ``shapes`` of the state dict of the model."""

    def __init__(
        self,
        program: Program,
        buffers: Mapping[str, np.ndarray],
        max_path: int,  # bonds of a path that are encoded
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._program, self._buffers, self._max_path, self.shapes = program, buffers, max_path, shapes
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
    token, spatial, bond, position = (weights[name] for name in _PATH_WEIGHTS)
    heads = token.shape[1]
    matrices = position.reshape(-1, heads, heads)[:max_path]
    paths = [np.ascontiguousarray(inputs[f"path_{name}"]) for name in ("distances", "ptr", "codes", "weights")]
    out = np.empty((len(paths[0]) + 1, heads), np.float32)
    bonds = np.empty((len(bond_rows), heads), np.float32)
    arrays = token, spatial, bond, np.ascontiguousarray(matrices), bond_rows, *paths, bonds, out
    sizes = (*bond_rows.shape, len(matrices), len(spatial), len(paths[0]), len(paths[2]), heads)
    path_values(tuple(map(address, arrays)), sizes)
    return out
