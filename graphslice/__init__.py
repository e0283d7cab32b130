"""GraphSlice: properties of molecules with a graph transformer whose attention can be a sort.

import graphslice as gs
model = gs.fit(table, ["logp"], out="runs/logp")
model.predict(["CCO", "c1ccccc1O"])
gs.load("runs/logp")
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
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
    from graphslice.report import write_report

# Imported when first used: the model needs no RDKit, the chemistry no torch.
_LAZY_EXPORTS = {
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
    "ops": "graphslice.ops",
    "smiles_to_graph": "graphslice.chem",
    "train": "graphslice.api.fitting",
    "write_report": "graphslice.report",
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
    "write_report",
]


class _Lazy:
    """A name of this module that is imported when its value is first asked for.

    It is seen without: a shell that completes names looks at what they are, and would wait for all of them.
    """

    def __init__(self, name: str, home: str) -> None:
        self.name, self.home = name, home

    def __get__(self, module: ModuleType | None, kind: type) -> Any:
        if module is None:
            return self
        home = import_module(self.home)
        value = home if self.home == f"{module.__name__}.{self.name}" else getattr(home, self.name)
        vars(module)[self.name] = value
        return value


sys.modules[__name__].__class__ = type(
    "Module", (ModuleType,), {n: _Lazy(n, home) for n, home in _LAZY_EXPORTS.items()}
)


def __dir__() -> list[str]:
    return __all__
