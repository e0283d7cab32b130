"""The last linear map of a run that starts from other weights: fitted to what these read of its molecules.

A random one would have the rest learn from its errors first, which undoes what was taken (linear probing, then
fine-tuning: Kumar et al. 2022, arXiv:2202.10054).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from graphslice.batch import GraphBatch
from graphslice.config import MOLECULE
from graphslice.data.datamodule import MoleculeData
from graphslice.inference.batches import for_each_batch
from graphslice.nn import GraphTransformer
from graphslice.tasks import REGRESSION, each_target

# The most molecules that it is fitted to, and chosen by; of more, as many at random.
_MAX_ROWS = 5_000
# Penalties of a ridge regression, relative to the mean square of what is read; the last leaves the mean alone.
_PENALTIES = (*np.logspace(-4, 1, 11), np.inf)
# Numbers are cut at so many deviations of their bulk from their median: squared errors would follow the few beyond.
_CLIP = 3.0
# A number is fitted where that explains so much of it on the validation molecules: what is known already is kept. Of
# others a random map became the better network (docs/log.md).
_MIN_EXPLAINED_VARIANCE = 0.8


def fit_head(model: GraphTransformer, data: MoleculeData) -> bool:
    """Fit the last map of a model to the training molecules; says whether any of its outputs was fitted.

    How strongly is chosen by the validation molecules, for each output. Not fitted are numbers of which that tells
    little, a head with a layer of its own, one of atoms or bonds, and one that reads descriptors.

    Args:
        model: with the mean and deviation of its targets, on the CPU.
        data: of the run.
    """
    config, head = model.config, model.head
    if not isinstance(head, nn.Linear) or config.level != MOLECULE or config.descriptors:
        return False
    rows = {split: _random_subset(data.splits[split], data.config.trainer.seed) for split in ("train", "valid")}
    read = {split: _embeddings(model, data, some) for split, some in rows.items()}
    wanted = {split: _head_targets(model, data, some) for split, some in rows.items()}
    numbers = {where.start for _, task, where in each_target(data.dataset.tasks) if task.kind == REGRESSION}
    fitted = False
    for output in range(len(head.bias)):
        known = {split: np.isfinite(values[:, output]) for split, values in wanted.items()}
        if known["train"].sum() < 3 or not known["valid"].any():
            continue
        x, y = ([each[split][known[split]] for split in rows] for each in (read, wanted))
        weight, bias, explained = ridge(x[0], y[0][:, output], x[1], y[1][:, output])
        if explained < _MIN_EXPLAINED_VARIANCE and output in numbers:
            continue
        with torch.no_grad():
            head.weight[output] = torch.from_numpy(weight)
            head.bias[output] = bias
        fitted = True
    return fitted


def ridge(x: np.ndarray, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The weights ``float64 [C]`` and the constant of a ridge regression, of the penalty with the least squared error,
    and how much of the validation rows' variance it explains.

    Args:
        x: ``float64 [R, C]``.
        y: ``float64 [R]``.
        x_valid, y_valid: of the rows by which the penalty is chosen.
    """
    centre, middle = x.mean(axis=0), y.mean()
    u, s, vt = np.linalg.svd(x - centre, full_matrices=False)
    inner = u.T @ (y - middle)
    best, least = np.zeros(x.shape[1]), np.inf
    for penalty in _PENALTIES:
        weight = vt.T @ (inner * s / (s**2 + penalty * max(np.square(s).sum(), 1e-12)))
        error = np.square((x_valid - centre) @ weight + middle - y_valid).mean()
        if error < least:
            best, least = weight, error
    return best, float(middle - best @ centre), 1 - least / max(float(y_valid.var()), 1e-12)


def _random_subset(rows: np.ndarray, seed: int) -> np.ndarray:
    return (
        rows if len(rows) <= _MAX_ROWS else np.sort(np.random.default_rng(seed).choice(rows, _MAX_ROWS, replace=False))
    )


def _embeddings(model: GraphTransformer, data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """``float64 [R, width]``: what the head reads of some molecules."""
    found = np.empty((len(rows), model.width), np.float32)

    def compute(batch: GraphBatch) -> np.ndarray:
        with torch.inference_mode():
            return model.compute_embeddings(batch).float().numpy()

    training = model.training
    model.eval()
    for_each_batch(data.config, torch.device("cpu"), data.store, rows, compute, found)
    model.train(training)
    return found.astype(np.float64)


def _head_targets(model: GraphTransformer, data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """``float64 [R, W]``: what each output is to be; nan where unknown.

    Of a class it is what the first step of Newton's method adds to the logit of its share p: ``(y - p) / (p (1 - p))``.
    """
    from scipy.stats import iqr

    labels, learned = data.labels[rows], data.train_labels
    mean, std = (each.double().numpy() for each in (model.target_mean, model.target_std))
    wanted = np.full((len(rows), len(mean)), np.nan)
    for t, task, where in each_target(data.dataset.tasks):
        y = labels[:, t]
        if task.kind == REGRESSION:
            middle = np.nanmedian(learned[:, t])
            reach = _CLIP * iqr(learned[:, t], scale="normal", nan_policy="omit")
            cut = y.clip(middle - reach, middle + reach) if reach > 0 else y
            wanted[:, where] = (cut[:, None] - mean[where]) / std[where]
            continue
        for output in range(where.start, where.stop):
            place = 1 if task.outputs == 1 else output - where.start
            share = np.nanmean(np.where(np.isnan(learned[:, t]), np.nan, learned[:, t] == place))
            has = np.where(np.isnan(y), np.nan, y == place)
            wanted[:, output] = (has - share) / max(share * (1 - share), 1e-6)
    return wanted
