"""Networks in ONNX files, run by ONNX Runtime and compared with the plain torch modules."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import graphslice as gs
from graphslice import GraphTransformer, ModelConfig, RunConfig
from graphslice.calibration import CONSTANT, ApplicabilityDomain, Calibration, TargetCalibration
from graphslice.checkpoint import Checkpoint
from graphslice.chem.descriptors import descriptor_width
from graphslice.config import DataConfig, TrainerConfig
from graphslice.inference import Predictor
from graphslice.inference.onnx_export import export_onnx
from graphslice.nn.mixers import MIXERS
from graphslice.ops.dispatch import reference_only
from graphslice.tasks import Task

onnxruntime = pytest.importorskip("onnxruntime")

NUMBER, LOG = Task("y"), Task("z", transform="log")
RANK = Task("r", transform="rank", knots=((-1.0, 3.0), (-0.1, 4.0), (0.5, 4.5), (2.0, 70.0)))
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
        assert export_onnx(checkpoints, calibration, path).difference < 1e-5
        opened, model = session(path), Predictor(checkpoints, "cpu", calibration=calibration)
        for smiles in BATCHES:
            own = {name: values[: len(smiles)] for name, values in columns.items()}
            (found,) = opened.run(None, gs.onnx_inputs(opened, smiles, columns=own))
            expected = model.predict(smiles, columns=own)
            expected = np.concatenate(expected) if isinstance(expected, list) else expected
            assert found.shape == expected.shape and np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


WIDTH = descriptor_width(["rdkit2d", "weight"])
SETTINGS: dict[str, dict] = {
    "softmax": {"tasks": [NUMBER, LOG], "loss": "gaussian", "bond_messages": True},
    "slice-ascend": {"tasks": [RANK, LOG], "readout": "mean+max+quantiles+sum+token"},
    "slice-interleave": {"tasks": [BINARY, NUMBER]},
    "slice-max": {"tasks": [MULTICLASS, RANK], "data": DataConfig(features="rdkit2d,weight"), "descriptors": WIDTH},
    "slice-released": {"tasks": [NUMBER], "norm": "post", "head": "mlp", "embedding_layout": "graphormer"},
    "slice-quantile": {"tasks": [NUMBER], "level": "atom", "mixer_settings": {"statistic": "learnable"}},
    "csp": {"tasks": [NUMBER], "mixer_settings": {"groups": 2, "shifts": "power"}},
    "galerkin": {"tasks": [NUMBER], "level": "bond", "bond_messages": True},
    "fourier": {"tasks": [NUMBER]},
    "map-only": {"tasks": [NUMBER], "embedding_norm": True},
}


@pytest.mark.parametrize("mixer", SETTINGS)
def test_onnx_runtime_predicts_as_the_network(mixer, tmp_path):
    settings = dict(SETTINGS[mixer])
    checkpoint = network(settings.pop("tasks"), mixer=mixer, **settings)
    check([checkpoint], tmp_path / "model.onnx")


def test_every_mixer_has_a_case():
    assert SETTINGS.keys() == {name for name, kind in MIXERS.items() if kind.__module__.startswith("graphslice.")}


def test_ensembles_are_averaged_and_probabilities_scaled(tmp_path):
    targets = (TargetCalibration((), {CONSTANT: 1.0}, 2.5), TargetCalibration((), {CONSTANT: 1.0}, 0.5))
    calibration = Calibration(targets, ApplicabilityDomain(np.zeros((0, 16), np.uint64), np.zeros(0, np.int64), 0.5))
    members = [network([BINARY, MULTICLASS], seed, layers=1) for seed in (0, 1)]
    check(members, tmp_path / "model.onnx", calibration)
