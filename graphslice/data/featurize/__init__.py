"""SMILES to GraphStore on every core: in memory, into a file that survives an interruption, or from a cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphslice.data.featurize.build import build_store
    from graphslice.data.featurize.cache import check_graphs, default_cache, store_of
    from graphslice.data.featurize.dataset import FeaturizeReport, featurize_dataset
    from graphslice.data.featurize.pool import Pool, featurize, featurize_stream, featurizers

# Imported when first used: whoever predicts a few SMILES needs neither tables nor locks on files.
_HOMES = {
    "FeaturizeReport": "dataset",
    "Pool": "pool",
    "build_store": "build",
    "check_graphs": "cache",
    "default_cache": "cache",
    "featurize": "pool",
    "featurize_dataset": "dataset",
    "featurize_stream": "pool",
    "featurizers": "pool",
    "store_of": "cache",
}

__all__ = [
    "FeaturizeReport",
    "Pool",
    "build_store",
    "check_graphs",
    "default_cache",
    "featurize",
    "featurize_dataset",
    "featurize_stream",
    "featurizers",
    "store_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
