"""GraphSlice: molecular property prediction with a graph transformer whose token mixer can be a sort.

import graphslice as gs
model = gs.fit(table, ["logp"], out="runs/logp")
model.predict(["CCO", "c1ccccc1O"])
gs.load("runs/logp")
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphslice._version import __version__
from graphslice.system.machine import choose_kernel_folder, remove_kernels_of_other_versions

if TYPE_CHECKING:
    from graphslice.api.estimators import GraphSliceClassifier, GraphSliceRegressor, GraphSliceTransformer
    from graphslice.api.fitting import fit, train
    from graphslice.api.model import Model, load
    from graphslice.chem import MoleculeError, MolGraph, smiles_to_graph
    from graphslice.config import ModelConfig, RunConfig
    from graphslice.errors import InputError
    from graphslice.inference import Predictor
    from graphslice.inference.inputs import collate_molecules, onnx_inputs
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
    "graphslice.inference.inputs": ("collate_molecules", "onnx_inputs"),
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
    "collate_molecules",
    "fit",
    "load",
    "onnx_inputs",
    "ops",
    "smiles_to_graph",
    "train",
    "write_report",
]


choose_kernel_folder(Path(__file__).parent, __version__)
remove_kernels_of_other_versions(Path(__file__).parent, __version__)


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _LAZY_EXPORTS.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    imported = import_module(module)
    globals()[name] = value = imported if module == f"{__name__}.{name}" else getattr(imported, name)
    return value


def __dir__() -> list[str]:
    return __all__
