"""Networks of a model: run by torch, or on a CPU as a compiled program without torch, at molecule level.

Its output head and encoder of descriptors compute in float32 with numpy what :class:`~graphslice.nn.block.MLPHead`,
:class:`~graphslice.nn.descriptors.DescriptorEncoder` and :meth:`~graphslice.nn.GraphTransformer.forward` compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from graphslice.config import MOLECULE
from graphslice.data.batches import Progress, batch_arrays, eval_batches, no_progress
from graphslice.data.store import GraphStore
from graphslice.inference.program_cache import load_program
from graphslice.program.saved import MAX_ROWS, SavedProgram
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.threads import map_one_core_each

if TYPE_CHECKING:
    from graphslice.inference.torch_networks import TorchNetworks

# Batch size in molecules.
_BATCH = 128


class CompiledNetworks:
    """Networks of M members run by a compiled program, with the interface of :class:`TorchNetworks`."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],  # one per member, all of one architecture
        program: SavedProgram,  # of this architecture
        parameters: Sequence[Mapping[str, np.ndarray]],  # by member, the weights that the program and the head read
        as_torch: Callable[[], TorchNetworks],  # predict the molecules that are too large
    ) -> None:
        self._config, self._program, self._parameters = checkpoints[0].config, program, parameters
        self.as_torch = as_torch
        self.weights = [checkpoint.weights for checkpoint in checkpoints]

    @property
    def target_stds(self) -> list[np.ndarray]:
        return [parameters["target_std"] for parameters in self._parameters]

    @property
    def width(self) -> int:
        return len(self._parameters) * self._config.model.width

    @property
    def num_parameters(self) -> int:
        return sum(weight.size for name, weight in self._parameters[0].items() if name not in STATISTICS)

    def predict(self, store: GraphStore, rows: np.ndarray, progress: Progress = no_progress) -> np.ndarray:
        """Compute the outputs ``float32 [M, R, W + D]`` of molecules."""
        outputs = np.empty((len(self._parameters), len(rows), self._config.model.tasks), np.float32)

        def fill(indices: np.ndarray, embeddings: list[np.ndarray]) -> None:
            for member, (values, parameters) in enumerate(zip(embeddings, self._parameters, strict=True)):
                outputs[member, indices] = predict_targets(values, parameters)

        if len(large := self._for_each_batch(store, rows, fill, progress)):
            outputs[:, large] = self.as_torch().predict(store, rows[large], progress)
        return outputs

    def embed(self, store: GraphStore, rows: np.ndarray) -> np.ndarray:
        """Compute embeddings of molecules, ``float32 [R, C]``."""
        results = np.empty((len(rows), self.width), np.float32)

        def fill(indices: np.ndarray, embeddings: list[np.ndarray]) -> None:
            results[indices] = np.concatenate(embeddings, axis=1)

        if len(large := self._for_each_batch(store, rows, fill)):
            results[large] = self.as_torch().embed(store, rows[large])
        return results

    def _for_each_batch(
        self,
        store: GraphStore,
        rows: np.ndarray,
        use: Callable[[np.ndarray, list[np.ndarray]], None],
        progress: Progress = no_progress,
    ) -> np.ndarray:
        """Call ``use`` with the indices of each batch and the embeddings by each member; return indices left out."""
        fits = store.sizes[rows] < MAX_ROWS  # the graph token is a row too
        small, settings = np.flatnonzero(fits), self._config.collate_settings

        def embed_batch(batch: list[int]) -> None:
            indices = small[batch]
            inputs = batch_arrays(store, rows[indices], **settings)
            with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are reported later
                readouts = (self._program.run(inputs, parameters) for parameters in self._parameters)
                pairs = zip(readouts, self._parameters, strict=True)
                use(indices, [with_descriptors(values, inputs.get("descriptors"), p) for values, p in pairs])

        map_one_core_each(embed_batch, eval_batches(store.sizes[rows[small]], _BATCH), lambda done: progress(len(done)))
        return np.flatnonzero(~fits)


#: The networks of a model with M members.
Networks: TypeAlias = Union[CompiledNetworks, "TorchNetworks"]


def load_networks(checkpoints: Sequence[Checkpoint], device: str) -> Networks:
    """Load the networks onto a torch device, on a CPU as a compiled program if there is one for their configuration."""

    @cache
    def load() -> TorchNetworks:
        from graphslice.inference.torch_networks import TorchNetworks  # takes a second to import

        return TorchNetworks(checkpoints, device)

    compiled = _compile_networks(checkpoints, load) if device == "cpu" else None
    return compiled or load()


def _compile_networks(
    checkpoints: Sequence[Checkpoint], as_torch: Callable[[], TorchNetworks]
) -> CompiledNetworks | None:
    """Return the networks as a compiled program; None where there is none, or the weights do not fit."""
    config = checkpoints[0].config.model
    if config.level != MOLECULE or any(checkpoint.config.model != config for checkpoint in checkpoints):
        return None
    if not all(checkpoint.fits() for checkpoint in checkpoints) or (program := load_program(config)) is None:
        return None
    parameters = []
    for weights in (checkpoint.weights for checkpoint in checkpoints):
        found = {name: weight.shape for name, weight in weights.items() if weight.dtype.kind == "f"}
        if found != program.shapes or len(found) < len(weights):
            return None
        parameters.append({name: np.ascontiguousarray(weight, np.float32) for name, weight in weights.items()})
    return CompiledNetworks(checkpoints, program, parameters, as_torch)


#: Names of the state dict that are no parameters but statistics of the training set.
STATISTICS = {"target_mean", "target_std", *(f"descriptors.{name}" for name in ("centre", "scale", "low", "high"))}
_NORM_EPS = 1e-5
# Coefficients of the error function, Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
_ERF = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)))


def with_descriptors(
    readouts: np.ndarray, descriptors: np.ndarray | None, weights: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Append encoded descriptors ``float32 [B, F]``, nan where unknown, if any, to readouts ``float32 [B, W]``."""
    if descriptors is None:
        return readouts
    centre, scale, low, high = (weights[f"descriptors.{name}"] for name in ("centre", "scale", "low", "high"))
    z = (np.clip(descriptors, low, high) - centre) / scale
    z = np.where(np.isnan(z), np.float32(0), z) * np.float32(descriptors.shape[1] ** -0.5)
    return np.concatenate([readouts, _gelu(_linear(z, weights, "descriptors.project"))], axis=1)


def predict_targets(embeddings: np.ndarray, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """Predict targets in their unit, ``float32 [B, T]``, from embeddings ``float32 [B, C]``."""
    if "head.weight" in weights:
        outputs = _linear(embeddings, weights, "head")
    else:
        hidden = _gelu(_linear(embeddings, weights, "head.transform"))
        centred = hidden - hidden.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(variance + np.float32(_NORM_EPS))
        outputs = _linear(normed * weights["head.norm.weight"] + weights["head.norm.bias"], weights, "head.output")
    return outputs * weights["target_std"] + weights["target_mean"]


def _linear(x: np.ndarray, weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _gelu(x: np.ndarray) -> np.ndarray:
    """GELU of float32, with an error below 1e-7 of the normal distribution function."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = np.zeros_like(t)
    for coefficient in _ERF:
        series = series * t + coefficient
    erf = np.copysign(1 - series * t * np.exp(-z * z), x)
    return x * np.float32(0.5) * (1 + erf)
