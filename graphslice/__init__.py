"""GraphSlice: properties of molecules with a graph transformer whose attention can be a sort.

import graphslice as gs
model = gs.fit(table, ["logp"], out="runs/logp")
model.predict(["CCO", "c1ccccc1O"])
gs.load("runs/logp")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphslice._version import __version__

if TYPE_CHECKING:
    from graphslice import ops
    from graphslice.api.estimators import GraphSliceClassifier, GraphSliceRegressor
    from graphslice.api.fitting import fit, train
    from graphslice.api.model import Model, load
    from graphslice.chem import MoleculeError, MolGraph, smiles_to_graph
    from graphslice.config import ModelConfig, RunConfig
    from graphslice.errors import InputError
    from graphslice.inference import Predictor
    from graphslice.nn import GraphTransformer

# Imported when first used: the model needs no RDKit, the chemistry no torch.
_HOMES = {
    "GraphSliceClassifier": "graphslice.api.estimators",
    "GraphSliceRegressor": "graphslice.api.estimators",
    "GraphTransformer": "graphslice.nn",
    "InputError": "graphslice.errors",
    "ModelConfig": "graphslice.config",
    "MolGraph": "graphslice.chem",
    "MoleculeError": "graphslice.chem",
    "Model": "graphslice.api.model",
    "Predictor": "graphslice.inference",
    "RunConfig": "graphslice.config",
    "fit": "graphslice.api.fitting",
    "load": "graphslice.api.model",
    "smiles_to_graph": "graphslice.chem",
    "train": "graphslice.api.fitting",
}

__all__ = [
    "GraphSliceClassifier",
    "GraphSliceRegressor",
    "GraphTransformer",
    "InputError",
    "Model",
    "ModelConfig",
    "MolGraph",
    "MoleculeError",
    "Predictor",
    "RunConfig",
    "__version__",
    "fit",
    "load",
    "ops",
    "smiles_to_graph",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return import_module("graphslice.ops")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graphslice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
