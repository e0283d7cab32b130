"""GraphSlice: properties of molecules with a graph transformer whose attention can be a sort.

import graphslice as gs
model = gs.load("runs/demo")
model.predict(["CCO", "c1ccccc1O"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphslice._version import __version__

if TYPE_CHECKING:
    from graphslice import ops
    from graphslice.chem import MoleculeError, MolGraph, smiles_to_graph
    from graphslice.config import ModelConfig, RunConfig
    from graphslice.errors import InputError
    from graphslice.inference import Predictor, load
    from graphslice.nn import GraphTransformer
    from graphslice.report import write_report
    from graphslice.training import train

# Imported when first used: the model needs no RDKit, the chemistry no torch.
_HOMES = {
    "GraphTransformer": "graphslice.nn",
    "InputError": "graphslice.errors",
    "ModelConfig": "graphslice.config",
    "MolGraph": "graphslice.chem",
    "MoleculeError": "graphslice.chem",
    "Predictor": "graphslice.inference",
    "RunConfig": "graphslice.config",
    "load": "graphslice.inference",
    "smiles_to_graph": "graphslice.chem",
    "train": "graphslice.training",
    "write_report": "graphslice.report",
}

__all__ = [
    "GraphTransformer",
    "InputError",
    "ModelConfig",
    "MolGraph",
    "MoleculeError",
    "Predictor",
    "RunConfig",
    "__version__",
    "load",
    "ops",
    "smiles_to_graph",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return import_module("graphslice.ops")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graphslice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
