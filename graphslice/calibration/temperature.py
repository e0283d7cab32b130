"""Temperature scaling: calibration of class probabilities (Guo et al. 2017, arXiv:1706.04599)."""

from __future__ import annotations

import numpy as np

from graphslice.calibration.conformal import MIN_CALIBRATION_MOLECULES, mean_per_molecule
from graphslice.model_averaging import within_standard_errors

_TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(5.0), 65))
# Probabilities are clipped to this distance from 0 and 1, since their logarithm is taken.
_MIN_PROBABILITY = 1e-7


def temperature_scaled(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Divide the logits of probabilities by a temperature.

    Args:
        probabilities: ``float [R, W]``; W = 1: probability of the second of two classes, else of every class.
        temperature: above 0; a value above 1 reduces confidence, 1 changes nothing.

    Returns:
        Probabilities ``float [R, W]``.
    """
    if temperature == 1:
        return probabilities
    p = np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    if p.shape[1] == 1:
        return 1 / (1 + ((1 - p) / p) ** (1 / temperature))
    powers = p ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, y: np.ndarray, molecules: np.ndarray) -> float:
    """Fit the temperature that minimises log loss, with the same weight for every molecule.

    For temperatures below 1 labels are smoothed by the number of molecules of each class (Platt 1999), so that a few
    correct predictions do not make the model more confident than their number justifies; above 1 they are not, since
    smoothed labels alone would make it less confident. The result is the geometric mean of all temperatures of a grid
    from 0.2 to 5 whose difference in log loss from temperature 1 is within one standard error of the best, paired over
    molecules; 1 if temperature 1 is within it too.

    Args:
        probabilities: as for :func:`temperature_scaled`.
        y: class indices, ``int [R]``.
        molecules: ``int64 [R]``, molecule of each row.

    Returns:
        The temperature; 1 for fewer than 20 molecules or a single class.
    """
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES or len(np.unique(y)) < 2:
        return 1.0
    p = np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    smoothed = _platt_targets(y, molecules, classes := max(2, p.shape[1]))
    changes = []
    for temperature in (*_TEMPERATURES, 1.0):
        targets = smoothed if temperature < 1 else np.eye(classes)[y]
        change = _log_losses(temperature_scaled(p, temperature), targets) - _log_losses(p, targets)
        changes.append(mean_per_molecule(change, molecules))
    accepted = within_standard_errors(np.stack(changes))
    return 1.0 if accepted[-1] else float(np.exp(np.log(_TEMPERATURES[accepted[:-1]]).mean()))


def _platt_targets(y: np.ndarray, molecules: np.ndarray, classes: int) -> np.ndarray:
    """Smooth labels after Platt (1999): (N + 1) / (N + K) for a class of N molecules, else 1 / (N + K); [R, K]."""
    counts = np.array([len(np.unique(molecules[y == index])) for index in range(classes)])[y, None]
    return np.where(np.arange(classes) == y[:, None], counts + 1, 1) / (counts + classes)


def _log_losses(p: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Cross-entropy of probabilities and smoothed labels: ``[R]``."""
    p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
    return -(targets * np.log(np.maximum(p, 1e-12))).sum(axis=1)
