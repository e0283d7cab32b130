"""Networks that run as a compiled program predict what torch predicts, and what they cannot run torch runs."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import TINY

import graphslice as gs
from graphslice import InputError
from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import descriptor_width
from graphslice.config import DataConfig, GraphConfig, ModelConfig, RunConfig
from graphslice.data.batches import batch_arrays
from graphslice.data.featurize import parse
from graphslice.data.store import GraphStore
from graphslice.inference import compiled_networks
from graphslice.inference.compiled_networks import CompiledNetworks
from graphslice.inference.files import compute_embeddings
from graphslice.inference.predictor import Predictor
from graphslice.inference.program_cache import load_program, save_program
from graphslice.inference.torch_networks import TorchNetworks
from graphslice.nn import GraphTransformer
from graphslice.nn.model import build_network
from graphslice.program.run import programs_disabled
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint
from graphslice.tasks import regression_tasks


class TorchProgram:
    """Stands in for a compiled program: the readouts that torch computes."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.sizes = config, []
        self.shapes = {name: tuple(value.shape) for name, value in GraphTransformer(config).state_dict().items()}

    def run(self, inputs, parameters):
        self.sizes += inputs["lengths"].tolist()
        assert all(value.dtype == np.float32 and value.flags.c_contiguous for value in parameters.values())
        width = self.config.width - self.config.dim * (self.config.descriptors > 0)
        with torch.no_grad():
            network = build_network(self.config, parameters)
            return network.compute_embeddings(GraphBatch.from_arrays(inputs))[:, :width].numpy()


@pytest.fixture
def programs(monkeypatch):
    """The programs that were loaded."""
    loaded = []
    monkeypatch.setattr(
        compiled_networks, "load_program", lambda config: loaded.append(TorchProgram(config)) or loaded[-1]
    )
    return loaded


def checkpoint_of(seed: int = 0, features: str | None = None, tasks: int = 1, **model) -> Checkpoint:
    """An untrained model whose statistics are not those of the initialisation."""
    data = DataConfig(features=features)
    config = ModelConfig(**{**TINY, **model}, tasks=tasks, descriptors=descriptor_width(data.descriptors))
    torch.manual_seed(seed)
    net = GraphTransformer(config)
    with torch.no_grad():
        for name, value in net.state_dict().items():
            if name in ("target_std", "descriptors.scale") or "norm.weight" in name:
                value.uniform_(0.5, 2)
            elif not name.endswith(("low", "high")):
                value.normal_(std=0.3)
    names = [f"y{number}" for number in range(tasks)]
    return Checkpoint(RunConfig(data=data, model=config), regression_tasks(names), net.state_dict())


SMILES = ["CCO", "c1ccccc1O", "no molecule", "[Na+].[Cl-]", "C", "CC(=O)Nc1ccc(O)cc1"]


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"tasks": 3, "head": "mlp", "readout": "token+max+atomwise+sum+mean", "norm": "post"},
        {"readout": "quantiles", "embedding_norm": True},
        {"features": "morgan,rdkit2d", "bond_messages": True},
        {"mixer": "softmax", "norm": "post"},
        {"mixer": "galerkin", "norm": "none"},
    ],
    ids=str,
)
def test_predictions_and_embeddings_are_those_of_torch(model, programs, demo_smiles):
    checkpoints = [checkpoint_of(seed, **model) for seed in range(2)]
    predictor, smiles = Predictor(checkpoints, "cpu"), [*SMILES, *demo_smiles[:100]]
    assert isinstance(predictor.networks, CompiledNetworks) and len(programs) == 1
    found, store = predictor.predict(smiles, details=True), predictor.featurize_molecules(smiles)
    embeddings = compute_embeddings(predictor, store)
    assert len(programs[0].sizes) == 2 * 2 * (len(smiles) - 1)  # by two members, predicted and embedded
    members = predictor.models
    assert isinstance(predictor.networks, TorchNetworks) and len(members) == 2
    expected = predictor.predict(smiles, details=True)
    assert found.errors == expected.errors and np.isnan(found.values[2]).all()
    scale = np.nanstd(expected.values, axis=0)
    assert (scale > 0.01).all()
    np.testing.assert_allclose(found.values / scale, expected.values / scale, rtol=1e-6, atol=3e-6)
    np.testing.assert_allclose(found.std / scale, expected.std / scale, rtol=1e-6, atol=3e-6)
    again = compute_embeddings(predictor, store)
    # Sums of 200 descriptors round differently from one processor to the next.
    np.testing.assert_allclose(embeddings, again, rtol=1e-6, atol=1e-5 * np.nanstd(again))


def test_unknown_and_extreme_descriptors(programs):
    checkpoint = checkpoint_of(features="size,rdkit2d")
    checkpoint.weights["descriptors.low"][:10], checkpoint.weights["descriptors.high"][:10] = -1, 1
    predictor = Predictor(checkpoint, "cpu")
    columns = {"size": [np.nan, 1e30, -1e30, 0.5]}
    found = predictor.predict(["CCO", "C[Fe]", "CCCC", "C"], columns=columns)
    assert predictor.models and np.isfinite(found).all()
    np.testing.assert_allclose(found, predictor.predict(["CCO", "C[Fe]", "CCCC", "C"], columns=columns), rtol=1e-5)


def test_large_molecules_are_predicted_by_torch(programs, monkeypatch):
    predictor, smiles = Predictor(checkpoint_of(), "cpu"), ["C", "C" * 9, "C" * 8, "C" * 40, "CO"]
    monkeypatch.setattr("graphslice.inference.compiled_networks.MAX_ROWS", 9)
    found, store = predictor.predict(smiles), predictor.featurize_molecules(smiles)
    embeddings = compute_embeddings(predictor, store)
    assert sorted(programs[0].sizes) == [1, 1, 2, 2, 8, 8]
    assert isinstance(predictor.networks, CompiledNetworks) and predictor.models
    np.testing.assert_allclose(found, predictor.predict(smiles), rtol=1e-6)
    np.testing.assert_allclose(embeddings, compute_embeddings(predictor, store), rtol=1e-5, atol=1e-6)


def test_predicted_standard_deviations(programs):
    checkpoint = checkpoint_of(tasks=2)
    checkpoint.config.trainer.loss = "gaussian"
    checkpoint = replace(checkpoint, tasks=regression_tasks(["y"]))
    predictor = Predictor(checkpoint, "cpu")
    store = predictor.featurize_molecules(SMILES[:2])
    _, difficulty = predictor.predict_uncalibrated(store, np.arange(2))
    assert predictor.models
    _, expected = predictor.predict_uncalibrated(store, np.arange(2))
    for name in expected:
        np.testing.assert_allclose(difficulty[name], expected[name], rtol=1e-5)


def test_changed_modules_make_the_predictions(programs):
    predictor = Predictor(checkpoint_of(), "cpu")
    before, calls = predictor.predict("CCO"), []
    predictor.model.head.register_forward_hook(lambda *_: calls.append(1))
    np.testing.assert_allclose(predictor.predict("CCO"), before, rtol=1e-5)
    predictor.model.target_mean += 1
    np.testing.assert_allclose(predictor.predict("CCO"), before + 1, rtol=1e-5)
    assert len(calls) == 2 and predictor.checkpoints[0].weights["target_mean"] == predictor.model.target_mean


def test_other_levels_and_mixed_ensembles_are_run_by_torch(programs):
    atoms = checkpoint_of(mixer="slice-quantile", level="atom")
    mixed = [checkpoint_of(), checkpoint_of(dim=32)]
    for checkpoints in (atoms, mixed):
        assert isinstance(Predictor(checkpoints, "cpu").networks, TorchNetworks) and not programs


@pytest.mark.parametrize("change", ["missing", "more", "shape", "descriptors"])
def test_weights_that_do_not_fit_are_rejected(change, programs):
    checkpoint, name = checkpoint_of(), "blocks.0.mixer.value.weight"
    weights = checkpoint.weights
    if change == "descriptors":
        checkpoint.config.data.features, checkpoint.config.model.descriptors = "morgan", 10**12
    else:
        weights |= {"other" if change == "more" else name: weights[name][:-1]}
    if change == "missing":
        del weights[name]
    with pytest.raises(InputError, match="do not fit its configuration"):
        Predictor(checkpoint, "cpu")


def test_weights_of_other_precision_are_converted(programs):
    checkpoint = checkpoint_of()
    turned = {name: np.asfortranarray(value.astype(np.float64)) for name, value in checkpoint.weights.items()}
    found = Predictor(replace(checkpoint, weights=turned), "cpu")
    assert isinstance(found.networks, CompiledNetworks)
    assert found.predict("CCO") == Predictor(checkpoint, "cpu").predict("CCO")


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_number_of_parameters(mixer, programs):
    model = gs.Model(checkpoint_of(mixer=mixer, features="size", head="mlp"), "cpu")
    assert isinstance(model.networks, CompiledNetworks)
    assert model.describe()["parameters"] == model.model.num_parameters


# --- without torch --------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r} or name == "rdkit.Chem.Scaffolds":
            raise ImportError(f"{{name}} was imported")

sys.meta_path.insert(0, Blocker())
from graphslice.cli.main import main
sys.exit(max(main(arguments) for arguments in {commands!r}))
"""
BLOCKED = {"torch", "pytorch_lightning", "torch_geometric", "pandas", "ogb", "scipy", "sklearn", "matplotlib"}


def test_predictions_import_no_torch(tmp_path):
    """Importing any of these libraries takes longer than the prediction of a few molecules."""
    smiles, table = ["CCO", "c1ccccc1O", "oops"], tmp_path / "t.csv"
    table.write_text("\n".join(["smiles", *smiles]))
    by_torch = TorchNetworks([read_checkpoint("gap")], "cpu")  # writes the program to the cache
    commands = {
        (name, source): [name, "gap", *arguments]
        for name in ("predict", "fingerprint")
        for source, arguments in (("smiles", smiles), ("table", [str(table), "--workers", "1"]))
    }
    code = WITHOUT_TORCH.format(blocked=BLOCKED, commands=list(commands.values()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 * len(commands)
    store = GraphStore.from_arrays(*parse(smiles, read_checkpoint("gap").config.graph)[:2])
    expected = {"predict": by_torch.predict(store, np.arange(2))[0], "fingerprint": by_torch.embed(store, np.arange(2))}
    for number, (name, _) in enumerate(commands):
        header, *rows, rejected = lines[4 * number : 4 * number + 4]
        assert header.startswith("smiles,") and rejected.startswith("oops,") and "not a valid molecule" in rejected
        found = np.array([[float(cell) for cell in row.split(",")[1:] if cell] for row in rows])
        np.testing.assert_allclose(found[:, : expected[name].shape[1]], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mixer", "settings"),
    [("softmax", {"norm": "post", "head": "mlp"}), ("slice-quantile", {"bond_messages": True, "embedding_norm": True})],
)
def test_programs_of_the_cache_compute_what_modules_compute(mixer, settings, demo_smiles, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    config = ModelConfig(
        mixer=mixer, layers=2, dim=64, heads=8, ffn_dim=48, readout="mean+max+sum+atomwise", init="balanced", **settings
    )
    torch.manual_seed(0)
    model = GraphTransformer(config).eval()
    assert load_program(config) is None
    save_program(config, model)
    program = load_program(config)
    store = GraphStore.from_arrays(*parse([*demo_smiles[:20], "C", "[Na+].[Cl-]"], GraphConfig())[:2])
    rows = np.flatnonzero(store.sizes)
    inputs = batch_arrays(store, rows, bonds=config.bond_messages)
    parameters = {name: value.numpy() for name, value in model.state_dict().items()}
    assert program.shapes == {name: value.shape for name, value in parameters.items()}
    with torch.inference_mode(), programs_disabled():
        expected = model.compute_embeddings(GraphBatch.from_arrays(inputs)).numpy()
    np.testing.assert_allclose(program.run(inputs, parameters), expected, rtol=1e-4, atol=1e-4)
    wide = {**inputs, "path_types": inputs["path_types"].astype(np.int32)}
    np.testing.assert_array_equal(program.run(wide, parameters), program.run(inputs, parameters))


@pytest.mark.parametrize("contents", [b"{", pickle.dumps({}), b"cgraphslice\nmissing\n."])
def test_unreadable_program_is_ignored(contents, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    config = ModelConfig(dim=64, heads=8, layers=1)
    save_program(config, GraphTransformer(config).eval())
    (file,) = (tmp_path / "programs").iterdir()
    file.write_bytes(contents)
    assert load_program(config) is None


def test_models_without_a_program_are_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    config = ModelConfig(dim=64, heads=8, layers=1, readout="quantiles")
    save_program(config, GraphTransformer(config).eval())
    assert not (tmp_path / "programs").exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    (tmp_path / "programs").touch()
    config = ModelConfig(dim=64, heads=8, layers=1)
    save_program(config, GraphTransformer(config).eval())
    (tmp_path / "programs").unlink()

    def full_disk(*_, **__):
        raise InputError("cannot write the file: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("graphslice.inference.program_cache.atomic_write", full_disk)
        save_program(config, GraphTransformer(config).eval())
    assert load_program(config) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have owners on POSIX")
def test_programs_of_another_user_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    config = ModelConfig(dim=64, heads=8, layers=1)
    save_program(config, GraphTransformer(config).eval())
    (file,) = (tmp_path / "programs").iterdir()
    assert load_program(config) is not None
    if os.getuid() == 0:  # everybody trusts the files of root
        os.chown(file, 12_345, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: 12_345)
    assert load_program(config) is None
