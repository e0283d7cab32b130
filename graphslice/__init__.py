"""GraphSlice: molecular property prediction with a graph transformer whose token mixer can be a sort.

import graphslice as gs
model = gs.fit(table, ["logp"], out="runs/logp")
model.predict(["CCO", "c1ccccc1O"])
gs.load("runs/logp")
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graphslice._version import __version__
from graphslice.kernel_cache import choose_kernel_folder, remove_kernels_of_other_versions

if TYPE_CHECKING:
    from graphslice import ops
    from graphslice.api.estimators import GraphSliceClassifier, GraphSliceRegressor, GraphSliceTransformer
    from graphslice.api.fitting import fit, train
    from graphslice.api.model import Model, load
    from graphslice.chem import MoleculeError, MolGraph, smiles_to_graph
    from graphslice.config import ModelConfig, RunConfig
    from graphslice.errors import InputError
    from graphslice.inference import Predictor
    from graphslice.inference.onnx_inputs import onnx_inputs
    from graphslice.nn import GraphTransformer
    from graphslice.report.write import write_report

# Imported on first use: the model needs no RDKit, the chemistry no torch.
_LAZY_EXPORTS = {
    "graphslice.api.estimators": ("GraphSliceClassifier", "GraphSliceRegressor", "GraphSliceTransformer"),
    "graphslice.api.fitting": ("fit", "train"),
    "graphslice.api.model": ("Model", "load"),
    "graphslice.chem": ("MolGraph", "MoleculeError", "smiles_to_graph"),
    "graphslice.config": ("ModelConfig", "RunConfig"),
    "graphslice.errors": ("InputError",),
    "graphslice.inference": ("Predictor",),
    "graphslice.inference.onnx_inputs": ("onnx_inputs",),
    "graphslice.nn": ("GraphTransformer",),
    "graphslice.ops": ("ops",),
    "graphslice.report.write": ("write_report",),
}

__all__ = [
    "GraphSliceClassifier",
    "GraphSliceRegressor",
    "GraphSliceTransformer",
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
    "onnx_inputs",
    "ops",
    "smiles_to_graph",
    "train",
    "write_report",
]


class _Lazy:
    """Descriptor that imports a public name on first access.

    On the class it returns itself, so that tab completion in a shell does not import everything.
    """

    def __init__(self, name: str, module_name: str) -> None:
        self.name, self.module_name = name, module_name

    def __get__(self, module: ModuleType | None, kind: type) -> Any:
        if module is None:
            return self
        imported = import_module(self.module_name)
        is_submodule = self.module_name == f"{module.__name__}.{self.name}"
        value = imported if is_submodule else getattr(imported, self.name)
        vars(module)[self.name] = value
        return value


class _Module(ModuleType):
    """This module, with the lazy exports as descriptors."""

    def __reduce__(self) -> Any:
        """Pickle as an import, as cloudpickle (joblib, Dask, Ray) does with modules of the usual class."""
        return import_module, (self.__name__,)


for _module_name, _names in _LAZY_EXPORTS.items():
    for _name in _names:
        setattr(_Module, _name, _Lazy(_name, _module_name))
sys.modules[__name__].__class__ = _Module
choose_kernel_folder(Path(__file__).parent)
remove_kernels_of_other_versions(Path(__file__).parent, __version__)


def __dir__() -> list[str]:
    return __all__
