"""Probabilities of classes made as sure as they are right (Guo et al. 2017, arXiv:1706.04599)."""

from __future__ import annotations

import numpy as np

from graphslice.calibration.conformal import MIN_CALIBRATION_MOLECULES, mean_per_molecule
from graphslice.model_averaging import within_standard_errors

_TEMPERATURES = np.exp(np.linspace(np.log(0.2), np.log(5.0), 65))
# Probabilities are kept so far from 0 and 1 where their logarithm is taken.
_MIN_PROBABILITY = 1e-4


def temperature_scaled(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """``float [R, W]``: probabilities whose logits are divided by a temperature.

    Args:
        probabilities: ``float [R, W]``; of one column that of the second of two classes, else of every class.
        temperature: above 0; above 1 it makes them less sure. 1 changes nothing.
    """
    if temperature == 1:
        return probabilities
    p = np.clip(np.asarray(probabilities, np.float64), 1e-12, 1 - 1e-12)
    if p.shape[1] == 1:
        return 1 / (1 + ((1 - p) / p) ** (1 / temperature))
    powers = p ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, y: np.ndarray, molecules: np.ndarray) -> float:
    """The temperature with which probabilities have the least log loss, every molecule counted as one.

    Labels count as a little less than sure, by how many molecules have them, as of Platt (1999): few molecules that are
    all right shall not make the model surer than so few can show. The result is the geometric mean of all temperatures
    of a grid from 0.2 to 5 whose log loss lies within one standard error of the best, paired over the molecules; 1
    where that is one of them.

    Args:
        probabilities: as of :func:`temperature_scaled`.
        y: ``int [R]``, places of the classes.
        molecules: ``int64 [R]``, which molecule each row is of.
    """
    if len(np.unique(molecules)) < MIN_CALIBRATION_MOLECULES or len(np.unique(y)) < 2:
        return 1.0
    p = np.clip(probabilities, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    wanted = _platt_targets(y, molecules, max(2, p.shape[1]))
    losses = [
        mean_per_molecule(_log_losses(temperature_scaled(p, t), wanted), molecules) for t in (*_TEMPERATURES, 1.0)
    ]
    near = within_standard_errors(np.stack(losses))
    return 1.0 if near[-1] else float(np.exp(np.log(_TEMPERATURES[near[:-1]]).mean()))


def _platt_targets(y: np.ndarray, molecules: np.ndarray, classes: int) -> np.ndarray:
    """``float64 [R, K]``: (N + 1) / (N + K) of a row's class, which N molecules have, and the others share the rest."""
    counts = np.array([len(np.unique(molecules[y == place])) for place in range(classes)])[y, None]
    return np.where(np.arange(classes) == y[:, None], counts + 1, 1) / (counts + classes)


def _log_losses(p: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """``[R]``: minus the mean logarithm of the probabilities, by how much of each class is wanted."""
    p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
    return -(wanted * np.log(np.maximum(p, 1e-12))).sum(axis=1)
