"""The output head and the encoder of descriptors of a network, for a molecule-level model in evaluation mode.

What :class:`~graphslice.nn.block.MLPHead`, :class:`~graphslice.nn.descriptors.DescriptorEncoder` and
:meth:`~graphslice.nn.GraphTransformer.forward` compute, in float32 with numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphslice.config import READOUTS, ModelConfig

#: Names of the state dict that are no parameters but statistics of the training set.
STATISTICS = {"target_mean", "target_std", *(f"descriptors.{name}" for name in ("centre", "scale", "low", "high"))}
_NORM_EPS = 1e-5
# Coefficients of the error function, Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
_ERF = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)))


def embedding_width(config: ModelConfig) -> int:
    """Return the number of features that the head reads."""
    return config.dim * (sum(READOUTS[name] for name in config.readout.split("+")) + (config.descriptors > 0))


def head_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights that the functions here read, by name in the state dict."""
    inputs, dim, tasks, descriptors = embedding_width(config), config.dim, config.tasks, config.descriptors
    shapes: dict[str, tuple[int, ...]] = {"target_mean": (tasks,), "target_std": (tasks,)}
    if descriptors:
        shapes |= {f"descriptors.{name}": (descriptors,) for name in ("centre", "scale", "low", "high")}
        shapes |= {"descriptors.project.weight": (dim, descriptors), "descriptors.project.bias": (dim,)}
    if config.head == "linear":
        return shapes | {"head.weight": (tasks, inputs), "head.bias": (tasks,)}
    shapes |= {"head.transform.weight": (dim, inputs), "head.output.weight": (tasks, dim), "head.output.bias": (tasks,)}
    return shapes | {f"head.{name}": (dim,) for name in ("transform.bias", "norm.weight", "norm.bias")}


def with_descriptors(
    readouts: np.ndarray, descriptors: np.ndarray | None, weights: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Append the encoded descriptors, if the model reads any, to readouts.

    Args:
        readouts: ``float32 [B, W]``.
        descriptors: ``float32 [B, F]``, nan where unknown; or None.
        weights: as :func:`head_shapes` describes them.

    Returns:
        The embeddings, ``float32 [B, C]``.
    """
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
