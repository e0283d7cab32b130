"""Export of the networks of a model to an ONNX file, with a check by ONNX Runtime."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from graphslice._version import __version__
from graphslice.batch import GraphBatch
from graphslice.calibration import Calibration
from graphslice.errors import InputError, first_line, optional_packages
from graphslice.feature_dims import ATOM_DIMS
from graphslice.inference.inputs import CONFIG_KEY, network_inputs
from graphslice.inference.predictor import Predictor
from graphslice.ops.dispatch import reference_only
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.files import atomic_write
from graphslice.tasks import BINARY, MULTICLASS, Task, each_target, num_outputs

#: The inputs of an exported network: their dimensions, of which those with a name are free, and their meaning.
INPUTS: dict[str, tuple[tuple[str | int, ...], str]] = {
    "atoms": (("molecules", "atoms", len(ATOM_DIMS)), "uint8, atom features of OGB; 0 in the padding"),
    "degrees": (("molecules", "atoms"), "uint8, number of bonds of each atom; 0 in the padding"),
    "lengths": (("molecules",), "int64, number of atoms of each molecule"),
    "path_types": (("molecules", "atoms", "atoms"), "int32, path type of each pair of atoms; -1 in the padding"),
    "path_distances": (("path_types",), "int32, distance of each path type in bonds; 510 between fragments"),
    "path_ptr": (("path_types",), "int32, first entry of each path type"),
    "path_codes": (("path_entries",), "int32, position of a bond on the path times 60, plus its bond type"),
    "path_weights": (("path_entries",), "float32, weight of each entry; those of a path type sum to 1"),
    "descriptors": (("molecules", 0), "float32, descriptors of each molecule; nan where unknown"),
    "atom_bond_index": (("predicted", 4), "int64, molecule, both atoms and bond type of each predicted atom or bond"),
    "bonds": (("molecules", "rows", "rows"), "int16, bond and ring of each pair of rows; row 0 is the graph token"),
}
#: Name of the output.
OUTPUT = "predictions"
# Batches of the check; the first is also traced. One atom and sixty, fragments, ties, padding.
_BATCHES = (
    ["CC(=O)Oc1ccccc1C(=O)O", "[Na+].[Cl-]", "CCO"],
    ["C"],
    ["C" * 60, "O=C(O)c1ccc(N)cc1", "C1CC2CCC1CC2", "CC(C)(C)C", "F/C=C/F"],
)
# Largest accepted difference between ONNX Runtime and the networks.
_TOLERANCE = 1e-3


def export_onnx(checkpoints: Sequence[Checkpoint], calibration: Calibration | None, path: Path) -> list[str]:
    """Write the networks of a model to an ONNX file, and compare it with the model by ONNX Runtime.

    The file predicts what the model predicts without its base models (:mod:`graphslice.stacking`): the mean over its
    networks, in the units of the targets, and class probabilities. Temperatures of ``calibration`` are applied if there
    are no base models. The numbers of molecules and of atoms are free. The metadata hold the settings, the targets and
    the meaning of the inputs. The file is written atomically after the comparison, whose notes are returned:
    differences are relative to the largest prediction of a target. InputError: a package is missing, ONNX cannot
    express the network, predictions of ONNX Runtime differ, or the file cannot be written.
    """
    with optional_packages("an ONNX file", "onnx"):
        import onnxruntime
        import onnxscript  # noqa: F401
        from onnx.helper import set_model_props
    stackings = [checkpoint.stacking for checkpoint in checkpoints if checkpoint.stacking is not None]
    whole = networks = Predictor(checkpoints, "cpu", calibration=calibration)
    if stackings:
        networks = Predictor([replace(one, stacking=None, calibration=None) for one in checkpoints], "cpu")
    model = _onnx_model(networks)
    set_model_props(model, _metadata(networks, [one.name for one in model.graph.input], bool(stackings)))
    contents = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    batches = _batches(networks)
    found = [session.run(None, network_inputs(networks.config, *batch))[0] for batch in batches]
    difference = _difference(found, networks, batches)
    if not difference <= _TOLERANCE:
        raise InputError(
            f"the network cannot be exported: predictions of ONNX Runtime differ by {difference:.1g} of the largest "
            f"prediction; {path} is not written"
        )
    notes = [
        f"ONNX Runtime predicts as the networks of the model on {sum(len(smiles) for smiles, _ in batches)} molecules: "
        f"the largest difference is {difference:.1g} times the largest prediction of a target"
    ]
    if stackings:
        weight = np.mean([stacking.weights[0].mean() for stacking in stackings])
        notes.append(
            f"base models are not in the file, whose networks have the weight {weight:.2f} in the predictions of the "
            f"model; on these molecules the file differs from the model by up to "
            f"{_difference(found, whole, batches):.1g} times the largest prediction of a target"
        )
    with atomic_write(path) as temporary:
        temporary.write_bytes(contents)
    return notes


def _batches(model: Predictor) -> list[tuple[list[str], dict[str, np.ndarray]]]:
    """Return the molecules of the check that the model reads, with values of its feature columns."""
    batches = []
    for smiles in _BATCHES:
        columns = {name: np.arange(len(smiles), dtype=float) for name in model.feature_columns}
        errors = model.featurize_molecules(smiles, columns).errors
        kept = [one for row, one in enumerate(smiles) if row not in errors]
        batches.append((kept, {name: values[: len(kept)] for name, values in columns.items()}))
    return batches


def _difference(found: list[np.ndarray], model: Predictor, batches: list[tuple]) -> float:
    """Return the largest difference to the predictions of a model, relative to the largest one of each column."""
    predicted = [model.predict(smiles, columns=columns) for smiles, columns in batches]
    expected = np.concatenate([part for batch in predicted for part in (batch if isinstance(batch, list) else [batch])])
    scale = np.abs(expected).max(axis=0) + np.finfo(np.float32).tiny
    return float((np.abs(np.concatenate(found) - expected) / scale).max())


def _metadata(model: Predictor, inputs: list[str], stacked: bool) -> dict[str, str]:
    without = " without its base models, which are not in the file" if stacked else ""
    return {
        "description": f"GraphSlice {__version__}: {OUTPUT} are those of the model{without}",
        CONFIG_KEY: json.dumps(model.config.without_paths().to_dict()),
        "graphslice.tasks": json.dumps([task.to_dict() for task in model.tasks]),
        "graphslice.columns": json.dumps(model.columns),
        "graphslice.inputs": json.dumps({name: [*INPUTS[name][0], INPUTS[name][1]] for name in inputs}),
    }


def _onnx_model(model: Predictor) -> Any:
    """Return the networks of a model as an ``onnx.ModelProto``; raise InputError if ONNX cannot express them."""
    from torch.onnx.errors import OnnxExporterError

    arrays = network_inputs(model.config, *_batches(model)[0])
    try:
        return to_onnx(_InUnits(model, list(arrays)), arrays)
    except (OnnxExporterError, RuntimeError) as error:
        raise InputError(
            f"the network cannot be expressed in ONNX: its mixer {model.config.model.mixer} does something that "
            f"torch.export or ONNX does not support ({first_line(error)})"
        ) from None


def to_onnx(module: nn.Module, inputs: Mapping[str, np.ndarray]) -> Any:
    """Trace a module, on plain reference operators, to an ``onnx.ModelProto``; ``inputs``: at least two molecules."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass
    from onnxscript.optimizer import fold_constants

    sizes = {name: Dim(name) for name in ("molecules", "atoms", "path_types", "path_entries", "predicted")}
    free: dict[Any, Any] = {**sizes, "rows": sizes["atoms"] + 1}
    shapes = [{i: free.get(dim, Dim.STATIC) for i, dim in enumerate(INPUTS[name][0])} for name in inputs]
    tensors = tuple(map(torch.from_numpy, inputs.values()))
    with torch.no_grad(), reference_only(), _quiet():
        traced = export(module.eval(), tensors, dynamic_shapes=(tuple(shapes),), strict=False)
        program = torch.onnx.export(
            traced,
            dynamo=True,
            dynamic_shapes=(tuple(shapes),),
            input_names=list(inputs),
            output_names=[OUTPUT],
            custom_translation_table=_translations(),
            verbose=False,
            optimize=False,  # a rewriting rule of onnxscript 0.7 loses the limits of two networks that clip one column
        )
        assert program is not None
        fold_constants(program.model)
        RemoveUnusedNodesPass()(program.model)
        return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _translations() -> dict[Any, Any]:
    """Return ONNX functions for operators of torch that have none, or a slow one with a loop over its rows."""
    from onnxscript import opset18 as op

    def sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        # TopK is stable too, but has no order for nan, which torch sorts as the largest number.
        key = op.Where(op.IsNaN(x), np.inf, x)
        return op.TopK(key, op.Gather(op.Shape(x), [dim]), axis=dim, largest=int(descending), sorted=1)

    def add_at(shape: Any, rows: Any, values: Any) -> Any:
        zeros = op.Expand(op.CastLike(0, values), shape)
        return op.ScatterND(zeros, op.Unsqueeze(rows, [1]), values, reduction="add")

    def embedding_bag(
        table: Any, indices: Any, offsets: Any, scale: bool, mode: int, sparse: bool, weights: Any, *_: Any
    ) -> tuple[Any]:
        entries, bags, ones = op.Shape(indices), op.Shape(offsets), op.Expand(1, op.Shape(offsets))
        # The bag of each entry: the number of bags that begin at it or before, less one. An empty bag may begin last.
        begun = op.CumSum(add_at(op.Add(entries, 1), offsets, ones), 0)
        bag = op.Sub(op.Slice(begun, [0], [-1]), 1)
        values = op.Gather(table, indices)
        if weights is not None:
            values = op.Mul(values, op.Unsqueeze(weights, [1]))
        sums = add_at(op.Concat(bags, op.Slice(op.Shape(table), [1], [2]), axis=0), bag, values)
        if mode == 1:  # the mean
            counts = add_at(bags, bag, op.Expand(op.CastLike(1, table), entries))
            sums = op.Div(sums, op.Unsqueeze(counts, [1]))
        return (sums,)

    return {torch.ops.aten.sort.stable: sort, torch.ops.aten.embedding_bag.padding_idx: embedding_bag}


class _InUnits(nn.Module):
    """Predictions of M networks from the tensors of a batch, named by ``names``: their mean, in the targets' units."""

    def __init__(self, predictor: Predictor, names: Sequence[str]) -> None:
        super().__init__()
        self.networks, self.names = nn.ModuleList(predictor.networks.as_torch().modules), names
        self.tasks, self.calibration = predictor.tasks, predictor.calibration

    def forward(self, *tensors: Tensor) -> Tensor:
        batch = GraphBatch.unchecked(**dict(zip(self.names, tensors, strict=True)))
        outputs = torch.stack([network(batch)[:, : num_outputs(self.tasks)] for network in self.networks])
        parts = []
        for t, task, columns in each_target(self.tasks):
            mean = _in_unit(outputs[..., columns], task).mean(dim=0)
            temperature = self.calibration.targets[t].temperature if self.calibration and task.classes else 1.0
            parts.append(mean if temperature == 1 else _temperature_scaled(mean, temperature))
        return torch.cat(parts, dim=1)


def _in_unit(outputs: Tensor, task: Task) -> Tensor:
    """Convert the outputs of one target, ``[M, R, W]``: see :func:`graphslice.tasks.to_predictions`."""
    if task.kind == BINARY:
        return outputs.sigmoid()
    if task.kind == MULTICLASS:
        return outputs.softmax(dim=-1)
    if task.transform == "log":
        return outputs.exp()
    return outputs.clamp(min=0) if task.positive else outputs


def _temperature_scaled(probabilities: Tensor, temperature: float) -> Tensor:
    """Scale probabilities ``[R, W]``: see :func:`graphslice.calibration.calibration.temperature_scaled`."""
    p = probabilities.double().clamp(1e-12, 1 - 1e-12)
    if p.shape[1] == 1:
        return (p.logit() / temperature).sigmoid().float()
    return (p.log() / temperature).softmax(dim=1).float()
