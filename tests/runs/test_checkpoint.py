"""Files of models: imported weights reproduce the originals' outputs, and untrusted files are rejected."""

import os
import pickle
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from original_models import ORIGINALS, original
from safetensors import safe_open
from safetensors.torch import save_file

import graphslice
from graphslice import GraphTransformer, InputError, ModelConfig, RunConfig, smiles_to_graph
from graphslice import calibration as cal
from graphslice.data.batches import collate
from graphslice.originals import import_checkpoint
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint, save_checkpoint, write_run_directory
from graphslice.runs.checkpoint_file import read_values, write_values
from graphslice.stacking.stacking import Stacking, fit_forest
from graphslice.tasks import regression_tasks


def predictions(checkpoint: Checkpoint, smiles: list[str]) -> np.ndarray:
    settings = checkpoint.config.graph
    graphs = [smiles_to_graph(s, atom_order=settings.atom_order) for s in smiles]
    with torch.no_grad():
        return checkpoint.model()(collate(graphs, path_ties=settings.path_ties))[:, 0].numpy()


@pytest.fixture
def saved(tmp_path):
    def save(contents, name="original.ckpt") -> Path:
        torch.save(contents, tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def own() -> Checkpoint:
    torch.manual_seed(0)
    config = RunConfig(model=ModelConfig(layers=2, dim=16, heads=4, ffn_dim=16, tasks=2))
    return Checkpoint(
        config, regression_tasks(["gap", "logp"]), GraphTransformer(config.model).state_dict(), {"note": "by hand"}
    )


@pytest.mark.parametrize("wrap", [lambda state: {"state_dict": state}, lambda state: state], ids=["lightning", "plain"])
@pytest.mark.parametrize("fixture", ["reference_small", "reference_checkpoint"])
@pytest.mark.parametrize("model", ORIGINALS)
def test_imported_models_reproduce_the_original_predictions(model, fixture, wrap, saved):
    state, smiles, expected = original(fixture, model)
    checkpoint = import_checkpoint(saved(wrap(state)), mixer=ORIGINALS[model])
    # The originals were run one molecule at a time; here all molecules and two larger ones are in one batch.
    found = predictions(checkpoint, ["C" * 70, *smiles, "C1" + "C" * 38 + "C1"])[1:-1]
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("model", "mixer"), [("graphormer", "softmax"), ("sliceformer_released", "slice-released")])
def test_mixer_is_inferred_from_the_weights(model, mixer, saved):
    state, smiles, expected = original("reference_checkpoint", model)
    checkpoint = import_checkpoint(saved(state))
    assert checkpoint.config.model.mixer == mixer
    np.testing.assert_allclose(predictions(checkpoint, smiles), expected, atol=1e-4)
    assert (checkpoint.config.graph.atom_order, checkpoint.config.graph.path_ties) == ("input", "floyd-warshall")
    assert checkpoint.targets == ["homolumogap"]


def prefixed(state):
    return {f"model.{name}": value for name, value in state.items()} | {"loss.weight": torch.ones(1)}


def downstream(state):
    """Another output head next to the unused first one, as for other datasets."""
    moved = {f"downstream_{k}": v for k, v in state.items() if k.startswith("out_proj")}
    return state | moved | {"out_proj.weight": torch.ones(5, 32), "out_proj.bias": torch.ones(5)}


def widened(state):
    return {name: value.double() for name, value in state.items()}


@pytest.mark.parametrize("change", [prefixed, downstream, widened])
def test_import_of_other_names_and_dtypes(change, saved):
    state, smiles, expected = original()
    checkpoint = import_checkpoint(saved({"state_dict": change(state)}))
    np.testing.assert_allclose(predictions(checkpoint, smiles), expected, atol=1e-4)


FOREIGN = """
import argparse, pathlib
import numpy as np
class Settings:
    def __init__(self, rate): self.rate = rate
class State:
    def __getstate__(self): return [1, 2]
    def __setstate__(self, state): raise RuntimeError("foreign code was run")
class Made:
    def __reduce__(self): return Made, (1, 2), {"a": 3}
    def __init__(self, *args): pass
def function(): pass
objects = {"settings": Settings(0.1), "state": State(), "made": Made(), "class": Settings, "function": function}
objects |= {"namespace": argparse.Namespace(rate=0.1, settings=Settings(2)), "path": pathlib.PurePosixPath("a/b")}
objects |= {"scalar": np.float64(0.5), "array": np.arange(3)}
"""


@pytest.fixture
def foreign(monkeypatch):
    """Objects of a project that is not installed where the file is read, by kind."""
    module = types.ModuleType("foreign_project")
    exec(FOREIGN, vars(module))
    monkeypatch.setitem(sys.modules, "foreign_project", module)
    return module.objects


@pytest.mark.parametrize(
    "what", ["settings", "state", "made", "class", "function", "namespace", "path", "scalar", "array"]
)
def test_classes_that_are_not_installed_become_inert(what, foreign, saved, monkeypatch):
    state, smiles, expected = original()
    path = saved({"hyper_parameters": {what: foreign[what]}, "epoch": 3, "state_dict": state})
    monkeypatch.delitem(sys.modules, "foreign_project")
    checkpoint = import_checkpoint(path)
    np.testing.assert_allclose(predictions(checkpoint, smiles[:3]), expected[:3], atol=1e-4)


def test_mixer_must_fit_the_weights(saved):
    graphormer, sliceformer = saved(original()[0], "g.ckpt"), saved(original(model="sliceformer_ascend")[0], "s.ckpt")
    for path, options, reason in (
        (graphormer, {"mixer": "slice-ascend"}, "has queries and keys"),
        (sliceformer, {"mixer": "softmax"}, "has no queries and keys"),
        (graphormer, {"mixer": "slice-asend"}, "unknown mixer 'slice-asend'"),
        (graphormer, {"target": "gap,logp"}, "predicts 1 targets: --target must name"),
    ):
        with pytest.raises(InputError, match=reason):
            import_checkpoint(path, **options)


@pytest.mark.parametrize(
    "name", ["edge_dis_encoder.weight", "out_proj.bias", "layers.1.self_attention.linear_v.weight"]
)
@pytest.mark.parametrize("shape", [None, (0,), (512, 5)])
def test_missing_weights_and_weights_of_another_shape_are_rejected(name, shape, saved):
    state = original()[0]
    del state[name]
    path = saved(state if shape is None else state | {name: torch.zeros(shape)})
    with pytest.raises(InputError, match=f"{re.escape(str(path))}|model\\."):
        import_checkpoint(path)


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("pack", ["torch", "old torch", "pickle"])
@pytest.mark.parametrize("reader", [read_checkpoint, import_checkpoint])
def test_file_that_runs_a_command_is_rejected(reader, pack, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "evil.ckpt"
    contents = {"state_dict": original()[0], "x": Evil(os.system, f"touch {marker}")}
    if pack == "pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=pack == "torch")
    with pytest.raises(InputError, match=r"evil.ckpt"):
        reader(path)
    assert not marker.exists()
    if pack != "pickle":  # an unrestricted reader does run it
        torch.load(path, weights_only=False)
        assert marker.exists()


@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_truncated_files_are_rejected(share, own, tmp_path):
    save_checkpoint(own, tmp_path / "model.safetensors")
    torch.save(original()[0], tmp_path / "g.ckpt")
    for name, reader in (("model.safetensors", read_checkpoint), ("g.ckpt", import_checkpoint)):
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(InputError, match=f"{name}.* is truncated"):
            reader(path)


@pytest.mark.parametrize("contents", [{"weights": torch.ones(2)}, {"state_dict": {"fc.weight": torch.ones(2, 2)}}, [1]])
def test_files_of_other_programs_are_rejected(contents, saved):
    with pytest.raises(InputError, match=r"is not a Graphormer|unknown names|does not hold|damaged"):
        import_checkpoint(saved(contents))
    with pytest.raises(InputError, match=r"not a model of GraphSlice"):
        read_checkpoint(saved(contents))


@pytest.mark.parametrize("reader", [read_checkpoint, import_checkpoint])
@pytest.mark.parametrize("content", [b"", b"smiles,gap\nCCO,1\n", b"PK\x03\x04" + bytes(100)])
def test_files_that_are_not_checkpoints_are_rejected(reader, content, tmp_path):
    (tmp_path / "table.ckpt").write_bytes(content)
    for name in ("table.ckpt", "absent.ckpt"):
        with pytest.raises(InputError, match=name):
            reader(tmp_path / name)


def with_change(checkpoint: Checkpoint, change, folder: Path) -> Path:
    """Write a model with changed contents."""
    save_checkpoint(checkpoint, folder / "a.safetensors")
    contents = read_values(folder / "a.safetensors", dict)
    change(contents)
    write_values(folder / "a.safetensors", contents)
    return folder / "a.safetensors"


def test_values_are_read_back(tmp_path):
    arrays = [np.arange(6.0)[::2], np.array(3, np.int16), np.zeros((0, 5), np.float16), np.array([True, False])]
    values = {"a": {"b.c": arrays[0], "d": [arrays[1], {"e": arrays[2]}, "é"]}, "f": None, "g": arrays[3], "h": [1.5]}
    write_values(tmp_path / "a.safetensors", values)
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert sorted(file.keys()) == ["a.b.c", "a.d.0", "a.d.1.e", "g"]
    back = read_values(tmp_path / "a.safetensors", dict)
    found = [back["a"]["b.c"], back["a"]["d"][0], back["a"]["d"][1]["e"], back["g"]]
    for array, expected in zip(found, arrays, strict=True):
        assert array.dtype == expected.dtype and array.shape == expected.shape and np.array_equal(array, expected)
    assert (back["a"]["d"][2], back["f"], back["h"]) == ("é", None, [1.5])


@pytest.mark.parametrize("header", [None, "", "[]", "{}", "[" * 10**5, "9" * 10**4])
def test_foreign_headers_are_rejected(header, tmp_path):
    metadata = {"format": "pt"} if header is None else {"graphslice": header}
    save_file({"x.7": torch.ones(2)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(InputError, match="not a model of GraphSlice"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_dtypes_that_numpy_lacks_are_rejected(tmp_path):
    save_file({"x": torch.ones(2).bfloat16()}, tmp_path / "a.safetensors", {"graphslice": "{}"})
    with pytest.raises(InputError, match="not a model of GraphSlice"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_saved_checkpoint_is_read_back(own, tmp_path):
    save_checkpoint(own, tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]  # no leftovers
    back = read_checkpoint(str(tmp_path / "a.safetensors"))
    assert (back.config, back.targets) == (own.config, own.targets)
    assert back.extra == {"version": graphslice.__version__, "note": "by hand"}
    assert back.weights.keys() == own.weights.keys()
    assert all(np.array_equal(back.weights[name], own.weights[name]) for name in own.weights)
    model = back.model()
    assert not model.training
    reference = GraphTransformer(own.config.model).eval()
    reference.load_state_dict({name: torch.from_numpy(value) for name, value in own.weights.items()})
    batch = collate([smiles_to_graph("CCO"), smiles_to_graph("c1ccccc1")])
    assert torch.equal(model(batch), reference(batch))


def test_building_a_model_draws_no_random_numbers(own):
    """Another thread may be training with the same generator."""
    state = torch.get_rng_state()
    own.model()
    assert torch.equal(torch.get_rng_state(), state)


def test_run_directory_is_written_and_not_overwritten(saved, tmp_path):
    (state, smiles, expected), folder = original(), tmp_path / "deep" / "run"
    write_run_directory(import_checkpoint(saved(state), target="gap"), folder)
    back = read_checkpoint(folder)
    assert back.targets == ["gap"]
    np.testing.assert_allclose(predictions(back, smiles), expected, atol=1e-4)
    with pytest.raises(InputError, match="holds a run already"):
        write_run_directory(back, folder)


@pytest.mark.parametrize("size", [{"layers": 2**62}, {"dim": 2**40}, {"num_distances": 10**30}, {"layers": 1}])
def test_no_memory_is_allocated_for_a_model_without_weights(size, own):
    config = RunConfig(model=ModelConfig(**{"layers": 2, "dim": 16, "heads": 4, "ffn_dim": 16, "tasks": 2, **size}))
    with pytest.raises(InputError, match="do not fit its configuration"):
        Checkpoint(config, own.tasks, own.weights).model()


CHANGES = [
    lambda c: c.pop("config"), lambda c: c.update(tasks=None), lambda c: c["tasks"][0].update(kind="other"),
    lambda c: c["tasks"][0].update(later=1), lambda c: c["tasks"].pop(), lambda c: c.update(calibration={}),
    lambda c: c.update(stacking=3), lambda c: c.update(stacking={"forest": [{}]}), lambda c: c.update(config=3),
    lambda c: c["stacking"]["forest"].pop(), lambda c: c["stacking"].update(weights=np.ones((3, 2))),
    lambda c: c["calibration"]["targets"].pop(),
    *(lambda c, change=change: c["calibration"]["targets"][0].update(change) for change in (
        {"counts": [np.ones(2)]}, {"counts": [np.zeros(3)]}, {"scores": ["x"]}, {"weights": {"constant": None}},
        {"temperature": 0}, {"temperature": "x"})),
    *(lambda c, change=change: c["calibration"]["domain"].update(change) for change in (
        {"threshold": None}, {"max_training_atoms": "9"}, {"smiles": ["C", "C"]}, {"smiles": ["\x1b[2J"]})),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_models_that_are_incomplete_or_of_other_targets_are_rejected(own, change, tmp_path):
    domain = cal.ApplicabilityDomain(np.zeros((1, 16), np.uint64), np.zeros(1, np.int64), 0.5)
    scores = cal.NonconformityScores(np.arange(1.0, 4.0), np.ones(3))
    own.calibration = cal.Calibration((cal.TargetCalibration((scores,), {cal.CONSTANT: 0.5}),) * 2, domain)
    own.stacking = Stacking({"forest": [fit_forest(np.zeros((3, 9)), np.ones(3), "regression", 0, 0)] * 2}, np.eye(2))
    read_checkpoint(with_change(own, dict, tmp_path))
    with pytest.raises(InputError, match=r"not a model of|other targets|than 0|above 0|not an array|not made of"):
        read_checkpoint(with_change(own, change, tmp_path))


def test_settings_of_another_version_are_named(own, tmp_path):
    path = with_change(own, lambda c: c["config"]["model"].update(later=1), tmp_path)
    with pytest.raises(InputError, match=rf"GraphSlice '{graphslice.__version__}': .*'model\.later'"):
        read_checkpoint(path)
