"""Networks in ONNX files, run by ONNX Runtime and compared with the plain torch modules."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TINY
from torch import nn

import graphslice as gs
from graphslice import GraphTransformer, InputError, ModelConfig, RunConfig
from graphslice.batch import GraphBatch
from graphslice.calibration import CONSTANT, ApplicabilityDomain, Calibration, TargetCalibration
from graphslice.chem.descriptors import descriptor_width
from graphslice.config import DataConfig, TrainerConfig
from graphslice.data.featurize import graph_input_rows
from graphslice.inference import Predictor
from graphslice.inference.inputs import network_inputs
from graphslice.inference.onnx_export import INPUTS, export_onnx, to_onnx
from graphslice.nn.block import Block
from graphslice.nn.mixers import MIXERS
from graphslice.ops.dispatch import reference_only
from graphslice.runs.checkpoint import Checkpoint, write_run_directory
from graphslice.stacking import Stacking
from graphslice.stacking.stacking import fit_base_models
from graphslice.tasks import Task

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

NUMBER, LOG = Task("y"), Task("z", transform="log")
BINARY, MULTICLASS = Task("b", "binary", ("no", "yes")), Task("m", "multiclass", ("a", "b", "c"))
# Batches of 1 to 7 molecules of 1 to 60 atoms: symmetric ones, fragments, ring systems.
BATCHES = [
    ["C"],
    ["[Na+].[Cl-]", "O"],
    ["CC(=O)Oc1ccccc1C(=O)O", "C" * 60, "N", "C1CC2CCC1CC2", "CC(C)(C)c1ccccc1", "F/C=C/F", "c1ccc2ccccc2c1"],
]


def network(tasks: list[Task], seed: int = 0, data: DataConfig | None = None, **settings) -> Checkpoint:
    """Create a model with random weights everywhere."""
    loss = settings.pop("loss", "auto")
    outputs = sum(task.outputs for task in tasks) * (2 if loss == "gaussian" else 1)
    shape = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "mixer": "slice-max", "tasks": outputs}
    config = RunConfig(
        model=ModelConfig(**{**shape, **settings}), data=data or DataConfig(), trainer=TrainerConfig(loss=loss)
    )
    torch.manual_seed(seed)
    model = GraphTransformer(config.model)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return Checkpoint(config, tasks, model.state_dict())


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def check(checkpoints: list[Checkpoint], path: Path, calibration: Calibration | None = None) -> None:
    """Export a model and compare the file with it on batches of several sizes."""
    columns = {name: [0.5, np.nan] * 9 for name in Predictor(checkpoints[0], "cpu").feature_columns}
    with reference_only():  # no kernels, which take long to compile
        note = export_onnx(checkpoints, calibration, path)[0]
        assert float(re.search("largest difference is (\\S+) times", note)[1]) < 1e-5
        opened, model = session(path), Predictor(checkpoints, "cpu", calibration=calibration)
        for smiles in BATCHES:
            own = {name: values[: len(smiles)] for name, values in columns.items()}
            (found,) = opened.run(None, gs.onnx_inputs(opened, smiles, columns=own))
            expected = model.predict(smiles, columns=own)
            expected = np.concatenate(expected) if isinstance(expected, list) else expected
            assert found.shape == expected.shape and np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


class EveryMixer(nn.Module):
    """Each mixer, and message passing along bonds, on the same molecules."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        settings = {"csp": {"shifts": "power"}}
        configs = [
            ModelConfig(**TINY | {"mixer": one, "bond_messages": True, "mixer_settings": settings.get(one)})
            for one in MIXERS
        ]
        blocks = [Block(config, 1) for config in configs]
        torch.manual_seed(0)
        self.network, self.names = GraphTransformer(configs[0]), names
        self.mixers = nn.ModuleList([*(block.mixer for block in blocks), blocks[0].messages])
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        batch = GraphBatch.unchecked(**dict(zip(self.names, tensors, strict=True)))
        x, context = self.network.embed(batch), self.network.pairs(batch, bonds=True)
        return torch.stack([mixer(x, context) for mixer in self.mixers])


def test_onnx_runtime_computes_every_mixer(tmp_path):
    config = RunConfig(model=ModelConfig(**TINY, bond_messages=True))
    batches = [network_inputs(config, smiles) for smiles in BATCHES]
    module = EveryMixer(list(batches[2]))
    opened = onnxruntime.InferenceSession(to_onnx(module, batches[2]).SerializeToString())
    for inputs in batches:
        (found,) = opened.run(None, inputs)
        with torch.no_grad(), reference_only():
            expected = module(*map(torch.from_numpy, inputs.values())).numpy()
        for row, length in enumerate(inputs["lengths"]):
            both = found[:, row, : length + 1], expected[:, row, : length + 1]
            for name, one, other in zip([*MIXERS, "bond messages"], *both, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4, err_msg=name)
    assert len(MIXERS) >= 10 and np.ptp(expected, axis=0).max() > 0.1  # the mixers differ


@pytest.mark.parametrize(
    "settings",
    [
        {
            "tasks": [LOG, Task("y", positive=True)],
            "mixer": "map-only",
            "loss": "gaussian",
            "readout": "mean+max+quantiles+sum+atomwise+token",
            "data": DataConfig(features="rdkit2d,weight"),
            "descriptors": descriptor_width(["rdkit2d", "weight"]),
            "embedding_layout": "graphormer",
        },
        {"tasks": [NUMBER], "level": "atom", "data": DataConfig(level="atom"), "norm": "post", "head": "mlp"},
    ],
    ids=["molecules", "atoms"],
)
def test_onnx_runtime_predicts_as_the_network(settings, tmp_path):
    check([network(**settings)], tmp_path / "model.onnx")


def test_ensembles_are_averaged_and_probabilities_scaled(tmp_path):
    """Both networks clip the same column."""
    targets = tuple(TargetCalibration((), {CONSTANT: 1.0}, temperature) for temperature in (2.5, 0.5))
    calibration = Calibration(targets, ApplicabilityDomain(np.zeros((0, 16), np.uint64), np.zeros(0, np.int64), 0.5))
    column = {"data": DataConfig(features="weight"), "descriptors": 1}
    members = [network([BINARY, MULTICLASS], seed, mixer="map-only", **column) for seed in (0, 1)]
    check(members, tmp_path / "model.onnx", calibration)


def test_command_exports_the_network_of_a_stack_and_says_so(tmp_path, cli):
    checkpoint = network([NUMBER], mixer="map-only", embedding_norm=True)
    alone = Predictor(checkpoint, "cpu")
    x, y = np.random.default_rng(0).normal(size=(2, 30, 1)).astype(np.float32)
    width = graph_input_rows(alone.featurize_molecules("C"), np.array([0])).shape[1]
    models = fit_base_models(np.tile(x, width), y, checkpoint.tasks, seed=0)
    checkpoint.stacking = Stacking(models, np.array([[0.4], [0.3], [0.2], [0.1]]))
    write_run_directory(checkpoint, tmp_path / "run")
    code, out, err = cli("export", tmp_path / "run", "-o", tmp_path / "model.onnx")
    assert code == 0 and out.split() == [str(tmp_path / "model.onnx")], err
    assert "predicts as the networks of the model on 9 molecules: the largest difference is" in err
    assert "base models are not in the file, whose networks have the weight 0.40" in err
    opened = session(tmp_path / "model.onnx")
    (found,) = opened.run(None, gs.onnx_inputs(opened, BATCHES[2]))
    np.testing.assert_allclose(found, alone.predict(BATCHES[2]), rtol=1e-4, atol=1e-4)
    assert np.abs(found - gs.load(tmp_path / "run").predict(BATCHES[2])).max() > 0.01
    _check_file(opened, tmp_path, cli)


def _check_file(opened: onnxruntime.InferenceSession, tmp_path: Path, cli) -> None:
    """Check the metadata, the inputs, padding, invalid molecules, and that a file is not replaced."""
    metadata = opened.get_modelmeta().custom_metadata_map
    assert "without its base models" in metadata["description"]
    assert json.loads(metadata["graphslice.tasks"])[0]["name"] == "y"
    assert json.loads(metadata["graphslice.columns"]) == ["y"]
    assert json.loads(metadata["graphslice.inputs"])["atoms"][:3] == ["molecules", "atoms", 9]
    assert [one.shape[0] for one in opened.get_inputs()][:2] == ["molecules", "molecules"]
    inputs = gs.onnx_inputs(opened, ["CCO"])
    assert {one.name for one in opened.get_inputs()} == inputs.keys() <= INPUTS.keys()
    padded = {
        name: np.pad(inputs[name], ((0, 0), (0, 40), (0, 0))[: inputs[name].ndim]) for name in ("atoms", "degrees")
    }
    types = np.pad(inputs["path_types"], ((0, 0), (0, 40), (0, 40)), constant_values=-1)
    expected, found = (opened.run(None, one)[0] for one in (inputs, {**inputs, **padded, "path_types": types}))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(InputError, match="row 1 of the molecules cannot be predicted: not a valid SMILES"):
        gs.onnx_inputs(opened, ["CCO", "C[N"])
    with pytest.raises(InputError, match="no molecules"):
        gs.onnx_inputs(opened, [])
    code, _, err = cli("export", tmp_path / "run", "-o", tmp_path / "model.onnx")
    assert code == 2 and "exists already: choose another name" in err


def test_a_network_that_onnx_cannot_express_is_rejected_in_a_sentence(tmp_path, cli):
    write_run_directory(network([NUMBER], mixer="csp", mixer_settings={"groups": 2}), tmp_path / "run")
    code, _, err = cli("export", tmp_path / "run", "-o", tmp_path / "model.onnx")
    assert code == 2 and "cannot be expressed in ONNX: its mixer csp does something" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_missing_packages_are_named(tmp_path, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = cli("export", "gap", "-o", tmp_path / "gap.onnx")
    assert code == 2 and "needs the package onnxruntime: pip install 'graphslice[onnx]'" in err


def test_another_file_has_no_settings():
    class Other:
        def get_modelmeta(self):
            return type("Meta", (), {"custom_metadata_map": {}})

    with pytest.raises(InputError, match="write it with graphslice export"):
        gs.onnx_inputs(Other(), ["CCO"])
