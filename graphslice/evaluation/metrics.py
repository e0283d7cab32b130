"""Errors of predictions; on PCQM4M-LSC by OGB's own evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphslice.data.ogb_lsc import FOLDERS, import_ogb_lsc


def mean_absolute_error(dataset: str, y_true: np.ndarray, y_pred: np.ndarray) -> float:
    """MAE in the unit of the targets, the mean over the targets that have labels of each one's MAE.

    On ``pcqm4m`` and ``pcqm4mv2`` it is computed by OGB's evaluator (in eV).

    Args:
        dataset: the name of the source.
        y_true: ``[R, T]``, nan where unknown: left out.
        y_pred: ``[R, T]``.
    """
    if dataset in FOLDERS:
        lsc = import_ogb_lsc()
        evaluator = lsc.PCQM4MEvaluator() if dataset == "pcqm4m" else lsc.PCQM4Mv2Evaluator()
        known = ~np.isnan(y_true[:, 0])
        return evaluator.eval({"y_true": y_true[known, 0], "y_pred": y_pred[known, 0].astype(y_true.dtype)})["mae"]
    errors = [_mae(y_true[:, t], y_pred[:, t]) for t in range(y_true.shape[1])]
    known = [error for error in errors if not np.isnan(error)]
    return float(np.mean(known)) if known else float("nan")


def _mae(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    known = ~np.isnan(y_true)
    return float(np.abs(y_true[known] - y_pred[known]).mean()) if known.any() else float("nan")


def scores(dataset: str, targets: Sequence[str], y_true: np.ndarray, y_pred: np.ndarray) -> dict:
    """MAE, root mean square error and R^2 of each target, and the overall MAE.

    Args and unit: as :func:`mean_absolute_error`.
    """
    by_target = {}
    for t, name in enumerate(targets):
        known = ~np.isnan(y_true[:, t])
        true, error = y_true[known, t], y_pred[known, t] - y_true[known, t]
        spread = float(((true - true.mean()) ** 2).sum()) if known.any() else 0.0
        by_target[name] = {
            "molecules": int(known.sum()),
            "mae": _mae(y_true[:, t], y_pred[:, t]),
            "rmse": float(np.sqrt((error**2).mean())) if known.any() else float("nan"),
            "r2": 1 - float((error**2).sum()) / spread if spread > 0 else float("nan"),
        }
    return {"mae": mean_absolute_error(dataset, y_true, y_pred), "molecules": len(y_true), "targets": by_target}
