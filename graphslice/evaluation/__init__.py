"""Evaluation: metrics of predictions, coverage of intervals, and OGB-LSC submission files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphslice.evaluation.metrics import METRICS, score, scores
    from graphslice.evaluation.submission import write_submission

# Imported on first use, so that metrics can be read without importing models.
_LAZY_EXPORTS = {"METRICS": "metrics", "score": "metrics", "scores": "metrics", "write_submission": "submission"}

__all__ = ["METRICS", "score", "scores", "write_submission"]


def __getattr__(name: str) -> Any:
    if name in _LAZY_EXPORTS:
        return getattr(import_module(f"{__name__}.{_LAZY_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
