"""Checkpoints: imported weights reproduce the originals' outputs, and untrusted files are rejected."""

import builtins
import contextlib
import os
import pickle
import re
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from original_models import ORIGINALS, original

import graphslice
from graphslice import GraphTransformer, InputError, ModelConfig, RunConfig, smiles_to_graph
from graphslice import calibration as cal
from graphslice.checkpoint import Checkpoint, read_checkpoint, save_checkpoint, write_run_directory
from graphslice.data.batch_loader import collate
from graphslice.originals import import_checkpoint
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


def test_import_creates_a_run_directory(saved, tmp_path):
    state, smiles, expected = original()
    write_run_directory(import_checkpoint(saved(state), target="gap"), tmp_path / "run")
    back = read_checkpoint(tmp_path / "run")
    assert back.targets == ["gap"]
    np.testing.assert_allclose(predictions(back, smiles), expected, atol=1e-4)


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
    with pytest.raises(InputError):
        read_checkpoint(path)


def test_mixer_must_fit_the_weights(saved):
    graphormer, sliceformer = saved(original()[0], "g.ckpt"), saved(original(model="sliceformer_ascend")[0], "s.ckpt")
    with pytest.raises(InputError, match="has queries and keys, so its mixer cannot be slice-ascend"):
        import_checkpoint(graphormer, mixer="slice-ascend")
    with pytest.raises(InputError, match="has no queries and keys, so its mixer cannot be softmax"):
        import_checkpoint(sliceformer, mixer="softmax")
    for path in (graphormer, sliceformer):
        with pytest.raises(InputError, match=r"unknown mixer 'slice-asend'.*slice-ascend"):
            import_checkpoint(path, mixer="slice-asend")
    with pytest.raises(InputError, match="predicts 1 targets, but --target names 2"):
        import_checkpoint(graphormer, target="gap,logp")


MISSING = r"""
atom_encoder\. edge_encoder\. edge_dis_encoder\. spatial_pos_encoder\. in_degree_encoder\. out_degree_encoder\.
graph_token\. graph_token_virtual_distance\. out_proj\. out_proj\.bias final_ln\. layers\. layers\.0\.
layers\.1\.ffn\.layer1\.weight layers\.0\.ffn\.layer1\.bias layers\.1\.self_attention\.linear_v
layers\.1\.self_attention_norm\."""


@pytest.mark.parametrize("missing", MISSING.split())
@pytest.mark.parametrize("model", ["graphormer", "sliceformer_ascend"])
def test_missing_weights_are_rejected(model, missing, saved):
    state = {name: value for name, value in original(model=model)[0].items() if not re.match(missing, name)}
    path = saved({"state_dict": state})
    with error_message(path):
        import_checkpoint(path)


SHAPES = {
    "spatial_pos_encoder.weight": [(512,), (512, 5), (100, 4), (512, 0)], "edge_dis_encoder.weight": [(3, 1), (0, 1)],
    "edge_encoder.weight": [(0, 4), (5, 4)], "graph_token.weight": [(32,), (1, 30)],
    "atom_encoder.weight": [(10, 32)], "out_proj.bias": [(), (0,)], "layers.0.ffn.layer1.bias": [(0,)],
    "layers.0.self_attention.linear_v.weight": [(32, 31)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
def test_weights_of_another_shape_are_rejected(name, shape, saved):
    path = saved(original()[0] | {name: torch.zeros(shape)})
    with error_message(path):
        import_checkpoint(path)


def error_message(path):
    return pytest.raises(InputError, match=f"{re.escape(str(path))}|model\\.")


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


READERS = {"read": read_checkpoint, "import": import_checkpoint}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("pack", ["torch", "old torch", "pickle"])
@pytest.mark.parametrize("reader", READERS)
def test_file_that_runs_a_command_is_rejected(reader, pack, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "evil.ckpt"
    contents = {"graphslice": {}, "state_dict": original()[0], "x": Evil(os.system, f"touch {marker}")}
    if pack == "pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=pack == "torch")
    with pytest.raises(InputError, match=r"evil.ckpt"):
        READERS[reader](path)
    assert not marker.exists()
    if pack != "pickle":  # an unrestricted reader does run it
        torch.load(path, weights_only=False)
        assert marker.exists()


@pytest.mark.parametrize("function", ["exec", "eval", "open", "getattr", "__import__"])
def test_builtins_are_never_called(function, saved, tmp_path):
    marker = tmp_path / "marker"
    calls = dict.fromkeys(("exec", "eval"), (f"open({str(marker)!r}, 'w')",)) | {"open": (str(marker), "w")}
    calls |= {"getattr": (torch.Tensor, "shape"), "__import__": ("antigravity",)}
    path = saved({"state_dict": original()[0], "x": Evil(getattr(builtins, function), *calls[function])})
    with pytest.raises(InputError):
        read_checkpoint(path)
    with contextlib.suppress(InputError):  # import may accept the weights and ignore the rest
        import_checkpoint(path)
    assert not marker.exists() and "antigravity" not in sys.modules


def test_import_restores_the_safe_globals_of_torch(foreign, saved, monkeypatch):
    path = saved({"state_dict": original()[0], "x": foreign["settings"]})
    monkeypatch.delitem(sys.modules, "foreign_project")
    before = set(torch.serialization.get_safe_globals())  # a set, since the order is random
    import_checkpoint(path)
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.9, 0.999])
def test_truncated_files_are_rejected(reader, share, own, tmp_path):
    whole, path = tmp_path / "whole.ckpt", tmp_path / "cut.ckpt"
    save_checkpoint(own, whole) if reader == "read" else torch.save(original()[0], whole)
    data = whole.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"cut.ckpt: it is truncated"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "contents",
    [{"weights": torch.ones(2)}, {"state_dict": {"fc.weight": torch.ones(2, 2)}}, {"state_dict": None}, [1, 2], 3, {}],
    ids=repr,
)
def test_files_of_other_programs_are_rejected(reader, contents, saved):
    with pytest.raises(InputError, match=r"is not a GraphSlice checkpoint|is not a Graphormer|does not hold"):
        READERS[reader](saved(contents))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", [b"", b"smiles,gap\nCCO,1\n", b"\x80\x02}q\x00.", b"PK\x03\x04" + bytes(100)])
def test_files_that_are_not_checkpoints_are_rejected(reader, content, tmp_path):
    path = tmp_path / "table.ckpt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"table.ckpt"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_missing_files_are_reported(reader, tmp_path):
    with pytest.raises(InputError, match=r"absent.ckpt"):
        READERS[reader](tmp_path / "absent.ckpt")


def with_change(checkpoint: Checkpoint, change, folder: Path) -> Path:
    """Write a checkpoint with changed contents."""
    save_checkpoint(checkpoint, folder / "a.ckpt")
    contents = torch.load(folder / "a.ckpt", weights_only=True)
    change(contents)
    torch.save(contents, folder / "a.ckpt")
    return folder / "a.ckpt"


def test_saved_checkpoint_is_read_back(own, tmp_path):
    save_checkpoint(own, tmp_path / "a.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]  # no leftovers
    back = read_checkpoint(str(tmp_path / "a.ckpt"))
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


def test_run_directory_is_written_and_not_overwritten(own, tmp_path):
    folder = tmp_path / "deep" / "run"
    write_run_directory(own, folder)
    assert read_checkpoint(folder).targets == own.targets
    with pytest.raises(InputError, match="holds a run already"):
        write_run_directory(own, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file/run.*: Not a directory"):
        write_run_directory(own, tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "size",
    [{"layers": 2**62}, {"dim": 2**40}, {"dim": 2**62}, {"ffn_dim": 2**45}, {"num_distances": 10**30}, {"layers": 1}],
)
def test_no_memory_is_allocated_for_a_model_without_weights(size, own):
    config = RunConfig(model=ModelConfig(**{"layers": 2, "dim": 16, "heads": 4, "ffn_dim": 16, "tasks": 2, **size}))
    with pytest.raises(InputError, match="do not fit its configuration"):
        Checkpoint(config, own.tasks, own.weights).model()


def test_weights_must_fit_the_configuration(own, tmp_path):
    own.config.model.dim = 32
    save_checkpoint(own, tmp_path / "a.ckpt")
    with pytest.raises(InputError, match="do not fit its configuration"):
        read_checkpoint(tmp_path / "a.ckpt").model()


CHANGES = [
    lambda c: c["graphslice"].pop("config"), lambda c: c["graphslice"].update(config=3),
    lambda c: c["graphslice"].pop("tasks"), lambda c: c["graphslice"].update(tasks=None),
    lambda c: c["graphslice"]["tasks"][0].update(kind="other"),
    lambda c: c["graphslice"]["tasks"][0].update(classes=["a"]),
    lambda c: c["graphslice"]["tasks"][0].update(later=1), lambda c: c.pop("state_dict"),
    lambda c: c.update(graphslice=3),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_incomplete_checkpoints_are_rejected(own, change, tmp_path):
    with pytest.raises(InputError, match="not a complete GraphSlice checkpoint"):
        read_checkpoint(with_change(own, change, tmp_path))


def test_settings_of_another_version_are_named(own, tmp_path):
    path = with_change(own, lambda c: c["graphslice"]["config"]["model"].update(later=1), tmp_path)
    with pytest.raises(InputError, match=r"written by another version .*'model\.later'"):
        read_checkpoint(path)


def test_unknown_mixers_are_rejected(own):
    own.config.model.mixer = "later"
    with pytest.raises(InputError, match=r"cannot build the network of the checkpoint: unknown mixer 'later'"):
        own.model()


def shared_lists(depth: int) -> list:
    """Return nested lists that contain the same list ten times: few bytes in a file, ``10**depth`` values."""
    values: list = ["x"] * 10
    for _ in range(depth - 1):
        values = [values] * 10
    return values


def cyclic_list() -> list:
    values: list = []
    values.append(values)
    return values


REPEATED = torch.zeros(1, dtype=torch.float16).expand(2**40)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["graphslice"]["config"]["trainer"].update(max_epochs=shared_lists(10)), "too many values"),
        (lambda c: c["graphslice"]["config"]["trainer"].update(max_epochs=cyclic_list()), "too many values"),
        (lambda c: c["graphslice"].update(tasks=shared_lists(10)), "too many values"),
        (lambda c: c.update(blend=OrderedDict(trees=shared_lists(10))), "too many values"),
        (lambda c: c["state_dict"].update({"model.norm.bias": REPEATED}), "a tensor of repeated elements"),
        (lambda c: c.update(calibration={"targets": [{"scores": [REPEATED]}]}), "a tensor of repeated elements"),
        (lambda c: c.update(blend={"weights": REPEATED}), "a tensor of repeated elements"),
    ],
)
def test_small_files_that_need_much_memory_are_rejected(own, change, reason, reader, tmp_path):
    path = with_change(own, change, tmp_path)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(InputError, match=rf"a.ckpt: it would need far more memory than it has bytes \({reason}\)$"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_compressed_archives_are_rejected_before_they_are_read(own, reader, tmp_path):
    save_checkpoint(own, tmp_path / "a.ckpt")
    with (
        zipfile.ZipFile(tmp_path / "a.ckpt") as whole,
        zipfile.ZipFile(tmp_path / "b.ckpt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name) + bytes(1_000_000))
    with pytest.raises(InputError, match=r"b.ckpt: it would need far more memory .* \(a compressed archive\)$"):
        READERS[reader](tmp_path / "b.ckpt")


def test_long_values_are_shortened_in_messages(own, tmp_path):
    long = {"max_epochs": "x" * 1_000_000}
    path = with_change(own, lambda c: c["graphslice"]["config"]["trainer"].update(long), tmp_path)
    with pytest.raises(InputError, match=r"max_epochs must be int or empty, not 'x+\.\.\.x+'$") as raised:
        read_checkpoint(path)
    assert len(str(raised.value)) < 1_000


@pytest.fixture
def calibrated(own, tmp_path):
    """The contents of a checkpoint of numbers, with a calibration."""
    scores = cal.NonconformityScores(np.arange(1.0, 4.0), np.ones(3, np.int64))
    domain = cal.ApplicabilityDomain(np.zeros((1, 16), np.uint64), np.zeros(1, np.int64), 0.5)
    target = cal.TargetCalibration((scores,), {cal.CONSTANT: 0.5, cal.DOMAIN_DISTANCE: 0.5})
    own.calibration = cal.Calibration((target, target), domain)
    save_checkpoint(own, tmp_path / "whole.ckpt")
    return torch.load(tmp_path / "whole.ckpt", weights_only=True)


# Values that are no numbers, or that the model cannot use; tests/calibration has the others.
MODIFIED = [
    *(lambda c, v=v: c["scores"].__setitem__(0, v) for v in (torch.tensor([1j]), torch.zeros(3).to_sparse(), "x")),
    *(
        lambda c, n=n: c.update(weights={cal.CONSTANT: 1.0, n: 0.5})
        for n in (cal.ENSEMBLE_STD, cal.PARTS_STD, cal.NETWORK_STD)
    ),
    *(lambda c, w=w: c.update(weights=w) for w in ([1], {})),
    lambda c: c.update(temperature=torch.ones(2)),
]
MODIFIED = [
    *(lambda c, change=change: change(c["targets"][0]) for change in MODIFIED),
    lambda c: c["domain"].update(rows=torch.tensor([float("inf")])),
    lambda c: c["domain"].update(bits=torch.zeros(1, 16, dtype=torch.bool)),
    lambda c: c["domain"].update(smiles=3),
    lambda c: c["domain"].update(most_atoms=float("inf")),
    lambda c: c.update(targets=3),
    lambda c: c.update(targets=c["targets"][:1]),
]


@pytest.mark.parametrize("change", MODIFIED)
def test_modified_calibrations_are_rejected(change, calibrated, saved):
    assert read_checkpoint(saved(calibrated)).calibration is not None
    change(calibrated["calibration"])
    other = "is not a complete GraphSlice checkpoint|it holds objects other than weights and plain values"
    with pytest.raises(InputError, match=rf"original.ckpt:? ({other})"):
        read_checkpoint(saved(calibrated))


def test_calibration_with_requires_grad_is_read(calibrated, saved):
    calibrated["calibration"]["targets"][0]["scores"][0].requires_grad_(True)
    assert read_checkpoint(saved(calibrated)).calibration.targets[0].scores[0].values.tolist() == [1, 2, 3]
