"""The model of a notebook: what it takes, what it tells of molecules, and how it is kept."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from promises import check_batch_independence
from rdkit import Chem

import graphslice as gs
from graphslice.analysis import attribute
from graphslice.api.model import Model
from graphslice.checkpoint import read_checkpoint
from graphslice.inference.predictor import Predictor

SMILES = ["CCO", "c1ccccc1O", "CC(=O)Nc1ccccc1", "C[C@H](N)C(=O)O", "[Na+].[Cl-]", "OCC1CC1"]


@pytest.fixture(scope="module")
def model(run_directory):
    return gs.load(run_directory, "cpu")


@pytest.fixture(scope="module")
def several(run_directory):
    """Two models: the trained one, and the same with other weights."""
    first = read_checkpoint(run_directory)
    second = read_checkpoint(run_directory / "last.ckpt")
    second.weights = {name: value * 1.5 for name, value in second.weights.items()}
    return Model([first, second], "cpu")


# --- what it takes ------------------------------------------------------------------------------


def mols() -> list[Chem.Mol]:
    """Molecules of RDKit: parsed, with hydrogens as atoms, and without having been sanitized."""
    found = [Chem.MolFromSmiles(smiles) for smiles in SMILES]
    return [found[0], Chem.AddHs(found[1]), Chem.MolFromSmiles(SMILES[2], sanitize=False), *found[3:]]


@pytest.mark.parametrize(
    "molecules",
    [
        np.array(SMILES, dtype=object),
        np.array(SMILES)[:, None],
        pd.Series(SMILES, index=list("abcabc")),
        pd.Series(SMILES, dtype="category"),
        pd.DataFrame({"id": range(6), "Smiles ": SMILES}, index=[3, 3, 1, 0, 9, 9]),
        pd.DataFrame({"whatever": SMILES}),
        pd.DataFrame({0: range(6), "smiles": pd.Series(SMILES, dtype="category")}),
        pd.DataFrame({"mol": mols()}),
        pa.table({"n": range(6), "SMILES": SMILES}),
        pa.RecordBatch.from_pydict({"n": range(6), "SMILES": SMILES}),
        pa.chunked_array([SMILES[:2], SMILES[2:]]),
        mols(),
        tuple(mols()[:3]) + tuple(SMILES[3:]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_molecules_however_they_are_given(molecules, model):
    np.testing.assert_allclose(model.predict(molecules), model.predict(SMILES), rtol=1e-5)


def test_one_molecule_of_rdkit(model):
    np.testing.assert_allclose(model.predict(Chem.MolFromSmiles("OCC")), model.predict("CCO"), rtol=1e-5)


def test_what_is_no_molecule_gets_a_reason(model):
    rows = ["CCO", None, np.nan, pd.NA, b"C", 3, ["C"], Chem.Mol(), Chem.MolFromSmarts("[*]"), "C[N", {"C": 1}]
    found = model.predict(rows, details=True)
    assert np.isnan(found.values[1:]).all() and np.isfinite(found.values[0]).all() and found.errors[0] is None
    assert found.errors[1:4] == ["empty SMILES"] * 3 and found.errors[7] == "empty SMILES"
    assert found.errors[4:7] == [
        "b'C' (bytes) is no SMILES",
        "3 (int) is no SMILES",
        "['C'] (list) is no SMILES",
    ]
    assert "wildcard" in found.errors[8] and found.errors[9] == "not a valid SMILES"
    frame = model.predict(pd.DataFrame({"smiles": ["CCO", None, 3, "oops"]}), details=True)
    assert [bool(error) for error in frame.errors] == [False, True, True, True]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "is no molecule"),
        (3.5, "is no molecule"),
        (b"CCO", "is no molecule"),
        ({"smiles": ["C"]}, "or a data frame"),
        (np.zeros((2, 2)), r"shape \[2, 2\]"),
        (pd.DataFrame({"a": [1], "b": [2]}), "which column holds the SMILES.* 'a', 'b'"),
        (pd.DataFrame([["C", "C"]], columns=["smiles", "smiles"]), "two columns called 'smiles'"),
    ],
    ids=str,
)
def test_what_holds_no_molecules_is_refused(given, reason, model):
    with pytest.raises(gs.InputError, match=reason):
        model.predict(given)


def test_no_rows(model):
    assert model.predict(pd.DataFrame({"smiles": []})).shape == (0, 1)
    assert model.embed([]).shape == (0, 16)


# --- what it tells of molecules -----------------------------------------------------------------


def test_embeddings_depend_on_the_molecule_alone(model, demo_smiles):
    weights = np.random.default_rng(0).normal(size=16)
    check_batch_independence(lambda smiles: model.embed(smiles) @ weights, SMILES + demo_smiles[:12])


@pytest.mark.parametrize("settings", [{}, {"readout": "mean+max"}, {"head": "mlp", "norm": "post"}], ids=str)
def test_an_embedding_is_what_the_head_reads(settings, make_predictor):
    checkpoint = make_predictor(8.0, **settings).checkpoints[0]
    model = Model(checkpoint, "cpu")
    read = []
    model.model.head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].detach().numpy()))
    expected = model.predict(SMILES)[:, 0]
    found = model.embed([*SMILES, "oops", None])
    assert found.dtype == np.float32 and found.shape == (8, 16 * (2 if "readout" in settings else 1))
    assert np.isnan(found[6:]).all() and np.isfinite(found[:6]).all()
    np.testing.assert_allclose(np.sort(np.concatenate(read), axis=0), np.sort(found[:6], axis=0), rtol=1e-5, atol=1e-6)
    if not settings:
        head = model.model.head
        answer = found[:6] @ head.weight.detach().numpy()[0] + head.bias.item()
        np.testing.assert_allclose(answer * model.model.target_std.item(), expected, rtol=1e-4, atol=1e-5)


def test_members_lie_side_by_side(several):
    found = several.embed(SMILES)
    for number, checkpoint in enumerate(several.checkpoints):
        own = Model(checkpoint, "cpu").embed(SMILES)
        np.testing.assert_allclose(found[:, 16 * number : 16 * (number + 1)], own, rtol=1e-5, atol=1e-6)
    assert found.shape == (6, 32)


@pytest.mark.parametrize("smiles", ["CC(=O)Nc1ccccc1", "OCC1CC1", "C(O)C"])
def test_atoms_stand_in_the_order_of_the_smiles(smiles, model):
    """However the molecule is written, each of its atoms has the same contribution."""
    mol = Chem.MolFromSmiles(smiles)
    found = model.attribute(smiles)
    assert found.shape == (mol.GetNumAtoms(),) and np.ptp(found) > 0
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    written = Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False)
    match = Chem.MolFromSmiles(written).GetSubstructMatches(mol, uniquify=False, maxMatches=100)
    # Atoms that symmetry makes equal may stand for each other.
    assert min(np.abs(model.attribute(written)[list(places)] - found).max() for places in match) < 1e-5
    graph = gs.smiles_to_graph(smiles)
    assert np.sort(found) == pytest.approx(np.sort(attribute(model, graph).values[:, 0]), abs=1e-9)


def test_attributions_of_several_and_of_targets(several, make_predictor):
    each = [Model(checkpoint, "cpu").attribute("CCO") for checkpoint in several.checkpoints]
    np.testing.assert_allclose(several.attribute("CCO"), np.mean(each, axis=0), atol=1e-9)
    two = Model(make_predictor(8.0, ("a", "b")).checkpoints, "cpu")
    assert not np.allclose(two.attribute("CCO", "a"), two.attribute("CCO", "b"))
    for arguments, reason in [
        (("CCO",), "which target.* a, b"),
        (("CCO", "c"), "no target 'c'"),
        (("C[N", "a"), "cannot explain .*not a valid SMILES"),
        ((None, "a"), "SMILES"),
    ]:
        with pytest.raises(gs.InputError, match=reason):
            two.attribute(*arguments)


def test_a_drawing_shows_itself(model, tmp_path):
    picture = model.draw("OCC")
    assert picture._repr_svg_().lstrip().startswith("<?xml") and "gap_ev" in picture.svg and "OCC" in picture.svg
    for name, begin in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        picture.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    for path, reason in ((tmp_path / "a.pdf", "as .svg or .png"), (tmp_path / "no" / "a.svg", "cannot write")):
        with pytest.raises(gs.InputError, match=reason):
            picture.save(path)
    with pytest.raises(gs.InputError, match="one SMILES"):
        model.draw(["CCO"])


# --- what it is ---------------------------------------------------------------------------------


def test_it_says_what_it_is(model, several, run_directory):
    assert repr(model) == "Model(gap_ev: regression; slice-max, 4,689 parameters; cpu)"
    assert "2 x slice-max" in repr(several)
    said = model.describe()
    assert said["targets"] == {"gap_ev": "regression"} and said["parameters"] == 4689 and said["models"] == 1
    assert said["folder"] == str(run_directory) and several.describe()["folder"] is None
    assert set(model.metrics) >= {"valid", "test"} and several.metrics == {}
    assert isinstance(model, Predictor) and gs.load(run_directory / "best.ckpt", "cpu").folder == run_directory


# --- how good it is -----------------------------------------------------------------------------


def test_evaluate(model, demo_rows, demo_csv, tmp_path):
    test = model.metrics["test"]
    answers = model.predict(demo_rows)[:, 0]
    whole = np.abs(answers - demo_rows["gap_ev"]).mean()
    for data in (None, demo_csv, demo_rows):  # it learned these: the test is what judges it
        assert model.evaluate(data)["mae"] == pytest.approx(test["mae"], rel=1e-5)
        assert model.evaluate(data, split="all")["mae"] == pytest.approx(whole, rel=1e-5)
    named = demo_rows.rename(columns={"gap_ev": "gap", "smiles": "molecule"}).drop(columns="split")
    found = model.evaluate(named, "gap", smiles="molecule")
    assert found["mae"] == pytest.approx(whole, rel=1e-5) and found["unanswered"] == 0
    assert set(found["targets"]) == {"gap"} and found["molecules"] == 60
    assert model.evaluate(demo_rows[:20].assign(split="test"))["molecules"] == 20
    bad = demo_rows[:5].drop(columns="split")
    bad.loc[0, "smiles"] = "oops"
    assert model.evaluate(bad)["unanswered"] == 1


def test_what_cannot_judge_it(model, several, demo_rows):
    for call, reason in [
        (lambda: model.evaluate(demo_rows, "gap"), "no column 'gap'"),
        (lambda: model.evaluate(demo_rows, ["gap_ev", "split"]), "predicts 1 targets, and --targets names 2"),
        (lambda: model.evaluate(demo_rows[:0]), "no rows"),
        (lambda: model.evaluate("absent.csv"), "no file"),
        (lambda: model.evaluate((["CCO"] * 100, [1.0] * 100)), "a data frame or the path of a table, not tuple"),
        (lambda: several.evaluate(), "no run folder"),
    ]:
        with pytest.raises(gs.InputError, match=reason):
            call()


# --- how it is kept -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["model", "several"])
def test_save(kept, request, cli, tmp_path):
    model = request.getfixturevalue(kept)
    for _ in range(2):  # as a cell of a notebook that is run again
        model.save(tmp_path / "kept")
    again = gs.load(tmp_path / "kept", "cpu")
    np.testing.assert_array_equal(again.predict(SMILES), model.predict(SMILES))
    code, out, _ = cli("predict", tmp_path / "kept", *SMILES)
    assert code == 0 and len(out.splitlines()) == 7
    assert again.metrics == model.metrics
    again.save(tmp_path / "kept")  # onto itself
    np.testing.assert_array_equal(gs.load(tmp_path / "kept", "cpu").predict(SMILES), model.predict(SMILES))
    assert not [path.name for path in (tmp_path / "kept").iterdir() if path.name.startswith(".")]


def test_one_model_takes_the_place_of_several(model, several, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    several.save(tmp_path / "kept")
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(gs.load(tmp_path / "kept", "cpu").predict(SMILES), model.predict(SMILES))
    assert (tmp_path / "kept" / "notes.txt").read_text() == "mine"
    with pytest.raises(gs.InputError, match="it is a file"):
        model.save(tmp_path / "kept" / "notes.txt")


def test_files_of_others_are_not_written_over(model, tmp_path):
    (tmp_path / "split.csv").write_text("mine")
    with pytest.raises(gs.InputError, match=r"holds no run, but a split\.csv"):
        model.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["split.csv"]
    assert (tmp_path / "split.csv").read_text() == "mine"
    model.save(tmp_path / "home" / "member-1")  # a run of its own
    with pytest.raises(gs.InputError, match="holds no run, but a member-1"):
        model.save(tmp_path / "home")
    assert gs.load(tmp_path / "home" / "member-1", "cpu").targets == model.targets


@pytest.mark.parametrize("kept", ["model", "several"])
def test_pickles_and_copies(kept, request):
    model = request.getfixturevalue(kept)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(again.predict(SMILES), model.predict(SMILES))
        assert isinstance(again, Model) and again.targets == model.targets and again.folder is None


# --- what one sees of the package ---------------------------------------------------------------


def test_names_are_completed_and_load_nothing():
    """What a shell asks of a module before anybody used it."""
    code = (
        "import graphslice as gs, inspect, sys\n"
        "seen = [name for name in dir(gs) if inspect.getattr_static(gs, name) is not None]\n"
        "print([name for name in ('torch', 'sklearn', 'pandas', 'rdkit') if name in sys.modules])\n"
        "names = ['fit', 'load', 'train', 'Model', 'GraphSliceRegressor', 'GraphSliceClassifier', 'ops']\n"
        "print(set(names) - set(seen), gs.ops.__name__, hasattr(gs, 'absent'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "set() graphslice.ops False"]
