"""Linear probe: ridge regression of the output layer on pretrained embeddings, before fine-tuning.

With a randomly initialised output layer, the first gradients would distort the pretrained features (linear probing then
fine-tuning: Kumar et al. 2022, arXiv:2202.10054).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from graphslice.batch import GraphBatch
from graphslice.config import MOLECULE
from graphslice.data.datamodule import MoleculeData
from graphslice.data.splits import sample_rows
from graphslice.inference.batches import for_each_batch
from graphslice.nn import GraphTransformer
from graphslice.tasks import REGRESSION, each_target

# Maximum number of training and of validation molecules; of more, a random sample is used.
_MAX_ROWS = 5_000
# Ridge penalties, relative to the mean square of the embeddings; with the last one the mean is predicted.
_PENALTIES = (*np.logspace(-4, 1, 11), np.inf)
# Regression labels are clipped at this many robust standard deviations (from the interquartile range) from the median,
# since squared errors would be dominated by outliers.
_CLIP = 3.0
# A regression target is fitted only if the fit explains this share of the variance on the validation set. Otherwise a
# random initialisation gave the better network (docs/log.md).
_MIN_EXPLAINED_VARIANCE = 0.8


def fit_linear_probe(model: GraphTransformer, data: MoleculeData) -> bool:
    """Fit a linear probe: the output layer by ridge regression on the embeddings of the training set.

    The penalty of each output is chosen on the validation set. Nothing is fitted for an MLP head, atom- or bond-level
    targets, or a head with descriptors; nor are regression targets of which the fit explains little variance.

    Args:
        model: pretrained model on the CPU, with the mean and standard deviation of its targets.
        data: molecules of the run.

    Returns:
        True if any output was fitted.
    """
    config, head = model.config, model.head
    if not isinstance(head, nn.Linear) or config.level != MOLECULE or config.descriptors:
        return False
    seed = data.config.trainer.seed
    rows = {s: sample_rows(data.splits[s], _MAX_ROWS, np.random.default_rng(seed)) for s in ("train", "valid")}
    embeddings = {split: _embeddings(model, data, sample) for split, sample in rows.items()}
    targets = {split: _head_targets(model, data, sample) for split, sample in rows.items()}
    regression = {where.start for _, task, where in each_target(data.dataset.tasks) if task.kind == REGRESSION}
    fitted = False
    for output in range(len(head.bias)):
        known = {split: np.isfinite(values[:, output]) for split, values in targets.items()}
        if known["train"].sum() < 3 or not known["valid"].any():
            continue
        x, y = ([values[split][known[split]] for split in rows] for values in (embeddings, targets))
        weight, bias, explained = ridge(x[0], y[0][:, output], x[1], y[1][:, output])
        if explained < _MIN_EXPLAINED_VARIANCE and output in regression:
            continue
        with torch.no_grad():
            head.weight[output] = torch.from_numpy(weight)
            head.bias[output] = bias
        fitted = True
    return fitted


def ridge(x: np.ndarray, y: np.ndarray, x_valid: np.ndarray, y_valid: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Fit a ridge regression, with the penalty of the least squared error on the validation rows.

    Args:
        x: ``float64 [R, C]``, features.
        y: ``float64 [R]``, labels.
        x_valid: ``float64 [V, C]``, features of the validation rows.
        y_valid: ``float64 [V]``, labels of the validation rows.

    Returns:
        The weights ``float64 [C]``, the intercept, and the share of the variance of ``y_valid`` that is explained.
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


def _embeddings(model: GraphTransformer, data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Return the embeddings ``float64 [R, width]`` that are the input of the head."""
    embeddings = np.empty((len(rows), model.width), np.float32)

    def compute(batch: GraphBatch) -> np.ndarray:
        with torch.inference_mode():
            return model.compute_embeddings(batch).float().numpy()

    training = model.training
    model.eval()
    for_each_batch(data.config, torch.device("cpu"), data.store, rows, compute, embeddings)
    model.train(training)
    return embeddings.astype(np.float64)


def _head_targets(model: GraphTransformer, data: MoleculeData, rows: np.ndarray) -> np.ndarray:
    """Return the targets ``float64 [R, W]`` of the outputs; nan where unknown.

    For a class with share p of the training labels, the target is the first Newton step for its logit,
    ``(y - p) / (p (1 - p))``.
    """
    from scipy.stats import iqr

    labels, train_labels = data.labels[rows], data.train_labels
    mean, std = (buffer.double().numpy() for buffer in (model.target_mean, model.target_std))
    targets = np.full((len(rows), len(mean)), np.nan)
    for t, task, where in each_target(data.dataset.tasks):
        y = labels[:, t]
        if task.kind == REGRESSION:
            median = np.nanmedian(train_labels[:, t])
            reach = _CLIP * iqr(train_labels[:, t], scale="normal", nan_policy="omit")
            clipped = y.clip(median - reach, median + reach) if reach > 0 else y
            targets[:, where] = (clipped[:, None] - mean[where]) / std[where]
            continue
        for output in range(where.start, where.stop):
            index = 1 if task.outputs == 1 else output - where.start
            share = np.nanmean(np.where(np.isnan(train_labels[:, t]), np.nan, train_labels[:, t] == index))
            in_class = np.where(np.isnan(y), np.nan, y == index)
            targets[:, output] = (in_class - share) / max(share * (1 - share), 1e-6)
    return targets
