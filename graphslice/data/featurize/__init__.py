"""Parallel conversion of SMILES to a GraphStore: in memory, into a file (resumable), or from a cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphslice.data.featurize.build import build_store
    from graphslice.data.featurize.cache import cached_store, check_graphs, default_cache
    from graphslice.data.featurize.pool import Pool, featurize, featurize_stream, featurizer_pool
    from graphslice.data.featurize.preprocess import FeaturizeReport, featurize_dataset

# Imported on first use: predicting a few SMILES needs neither table readers nor file locks.
_LAZY_EXPORTS = {
    "FeaturizeReport": "preprocess",
    "Pool": "pool",
    "build_store": "build",
    "cached_store": "cache",
    "check_graphs": "cache",
    "default_cache": "cache",
    "featurize": "pool",
    "featurize_dataset": "preprocess",
    "featurize_stream": "pool",
    "featurizer_pool": "pool",
}

__all__ = [
    "FeaturizeReport",
    "Pool",
    "build_store",
    "cached_store",
    "check_graphs",
    "default_cache",
    "featurize",
    "featurize_dataset",
    "featurize_stream",
    "featurizer_pool",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_EXPORTS:
        return getattr(import_module(f"{__name__}.{_LAZY_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
