"""Model: accepted inputs, embeddings, explanations, evaluation and storage."""

import copy
import pickle
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from invariance import check_batch_independence
from rdkit import Chem

import graphslice as gs
from graphslice.api.model import Model
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import read_checkpoint

SMILES = ["CCO", "c1ccccc1O", "CC(=O)Nc1ccccc1", "C[C@H](N)C(=O)O", "[Na+].[Cl-]", "OCC1CC1"]


@pytest.fixture(scope="module")
def model(run_directory):
    return gs.load(run_directory, "cpu")


@pytest.fixture(scope="module")
def ensemble(run_directory):
    """An ensemble of two models: the trained one, and one with scaled weights."""
    first = read_checkpoint(run_directory)
    second = read_checkpoint(run_directory)
    second.weights = {name: value * 1.5 for name, value in second.weights.items()}
    return Model([first, second], "cpu")


def mols() -> list[Chem.Mol]:
    """RDKit molecules: parsed, with explicit hydrogen atoms, and not sanitized."""
    parsed = [Chem.MolFromSmiles(smiles) for smiles in SMILES]
    return [parsed[0], Chem.AddHs(parsed[1]), Chem.MolFromSmiles(SMILES[2], sanitize=False), *parsed[3:]]


@pytest.mark.parametrize(
    "molecules",
    [
        np.array(SMILES, dtype=object), np.array(SMILES)[:, None], pd.Series(SMILES, index=list("abcabc")),
        pd.Series(SMILES, dtype="category"),
        pd.DataFrame({"id": range(6), "Smiles ": SMILES}, index=[3, 3, 1, 0, 9, 9]),
        pd.DataFrame({"whatever": SMILES}),
        pd.DataFrame({"mol": mols()}),
        pa.table({"n": range(6), "SMILES": SMILES}), pa.RecordBatch.from_pydict({"n": range(6), "SMILES": SMILES}),
        pa.chunked_array([SMILES[:2], SMILES[2:]]), mols(), tuple(mols()[:3]) + tuple(SMILES[3:]),
    ],
    ids=lambda molecules: type(molecules).__name__,
)  # fmt: skip
def test_predict_accepts_every_container_of_molecules(molecules, model):
    np.testing.assert_allclose(model.predict(molecules), model.predict(SMILES), rtol=1e-5)


@pytest.mark.parametrize("index", [[3, 5, 1, 0, 9, 8], list("fedcba")])
def test_table_of_predictions_has_the_index_of_the_data_frame(index, model):
    frame = pd.DataFrame({"smiles": SMILES}, index=index)
    for molecules in (frame, frame["smiles"]):
        frame["predicted"] = model.predict(molecules, details=True).to_frame()["gap_ev_pred"]
        np.testing.assert_array_equal(frame["predicted"], model.predict(SMILES)[:, 0])
    assert model.predict(SMILES, details=True).to_frame().index.tolist() == list(range(6))


def test_invalid_molecules_get_an_error_message(model):
    rows = ["CCO", None, np.nan, pd.NA, b"C", 3, ["C"], Chem.Mol(), Chem.MolFromSmarts("[*]"), "C[N", {"C": 1}]
    predictions = model.predict(rows, details=True)
    errors = predictions.errors
    assert np.isnan(predictions.values[1:]).all() and np.isfinite(predictions.values[0]).all() and errors[0] is None
    assert errors[1:4] == ["empty SMILES"] * 3 and errors[7] == "empty SMILES"
    assert errors[4:7] == [f"{what} is not a SMILES" for what in ("b'C' (bytes)", "3 (int)", "['C'] (list)")]
    assert "wildcard" in errors[8] and errors[9] == "not a valid SMILES: syntax error at character 3"
    frame = model.predict(pd.DataFrame({"smiles": ["CCO", None, 3, "oops"]}), details=True)
    assert [bool(error) for error in frame.errors] == [False, True, True, True]


@pytest.mark.parametrize(
    ("molecules", "message"),
    [
        ("my.csv", "my.csv is a file"),
        (3.5, "is not a molecule"), ({"smiles": ["C"]}, "or a data frame"), (np.zeros((2, 2)), r"shape \[2, 2\]"),
        (pd.DataFrame({"a": [1], "b": [2]}), "which column holds the SMILES.* 'a', 'b'"),
    ],
    ids=str,
)  # fmt: skip
def test_predict_rejects_other_types(molecules, message, model):
    with pytest.raises(gs.InputError, match=message):
        model.predict(molecules)


def test_empty_input_gives_empty_arrays(model):
    assert model.predict(pd.DataFrame({"smiles": []})).shape == (0, 1)
    assert model.embed([]).shape == (0, 16)


def test_embeddings_do_not_depend_on_batch_or_notation(model, demo_smiles):
    weights = np.random.default_rng(0).normal(size=16)
    check_batch_independence(lambda smiles: model.embed(smiles) @ weights, SMILES + demo_smiles[:12])


@pytest.mark.parametrize("settings", [{}, {"readout": "mean+max"}, {"head": "mlp", "norm": "post"}], ids=str)
def test_embedding_is_the_input_of_the_head(settings, make_predictor):
    checkpoint = make_predictor(8.0, **settings).checkpoints[0]
    model = Model(checkpoint, "cpu")
    head_inputs = []
    model.model.head.register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0].detach().numpy()))
    expected = model.predict(SMILES)[:, 0]
    embeddings = model.embed([*SMILES, "oops", None])
    assert embeddings.dtype == np.float32 and embeddings.shape == (8, 16 * (2 if "readout" in settings else 1))
    assert np.isnan(embeddings[6:]).all() and np.isfinite(embeddings[:6]).all()
    head_inputs = np.sort(np.concatenate(head_inputs), axis=0)
    np.testing.assert_allclose(head_inputs, np.sort(embeddings[:6], axis=0), rtol=1e-5, atol=1e-6)
    if not settings:
        head = model.model.head
        outputs = embeddings[:6] @ head.weight.detach().numpy()[0] + head.bias.item()
        np.testing.assert_allclose(outputs * model.model.target_std.item(), expected, rtol=1e-4, atol=1e-5)


def test_embeddings_of_ensemble_members_are_concatenated(ensemble):
    embeddings = ensemble.embed(SMILES)
    for number, checkpoint in enumerate(ensemble.checkpoints):
        expected = Model(checkpoint, "cpu").embed(SMILES)
        np.testing.assert_allclose(embeddings[:, 16 * number : 16 * (number + 1)], expected, rtol=1e-5, atol=1e-6)
    assert embeddings.shape == (6, 32)


def test_attributions_of_ensembles_and_of_several_targets(ensemble, make_predictor):
    members = [Model(checkpoint, "cpu").attribute("CCO") for checkpoint in ensemble.checkpoints]
    np.testing.assert_allclose(ensemble.attribute("CCO"), np.mean(members, axis=0), atol=1e-9)
    two_targets = Model(make_predictor(8.0, ("a", "b")).checkpoints, "cpu")
    assert not np.allclose(two_targets.attribute("CCO", "a"), two_targets.attribute("CCO", "b"))
    for arguments, message in [(("CCO",), "several targets.* a, b"), (("C[N", "a"), "not a valid SMILES")]:
        with pytest.raises(gs.InputError, match=message):
            two_targets.attribute(*arguments)


def test_drawing_is_saved_as_svg_and_png(model, tmp_path):
    picture = model.draw("OCC")
    assert picture._repr_svg_().startswith("<svg") and "gap_ev" in picture.svg and "OCC" in picture.svg
    for name, prefix in (("a.svg", b"<svg"), ("a.png", b"\x89PNG")):
        picture.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(prefix)
    with pytest.raises(gs.InputError, match=r"must end in \.svg, \.png"):
        picture.save(tmp_path / "a.pdf")


def test_repr_and_describe(model, ensemble, run_directory):
    assert repr(model) == "Model(gap_ev: regression; slice-max, 4,689 parameters; cpu)"
    assert "2 x slice-max" in repr(ensemble)
    summary = model.describe()
    assert summary["targets"] == {"gap_ev": "regression"} and summary["parameters"] == 4689 and summary["models"] == 1
    assert summary["calibrated"] and summary["units"] == summary["descriptions"] == {}
    assert gs.load("gap", "cpu").describe()["units"]["dipole"] == "debye"
    assert summary["folder"] == str(run_directory) and ensemble.describe()["folder"] is None
    assert set(model.metrics) >= {"valid", "test"} and ensemble.metrics == {}
    assert isinstance(model, Predictor) and gs.load(run_directory / "model.safetensors", "cpu").folder == run_directory


def test_evaluate(model, demo_rows, demo_csv, tmp_path):
    test = model.metrics["test"]
    predictions = model.predict(demo_rows)[:, 0]
    mae_of_all = np.abs(predictions - demo_rows["gap_ev"]).mean()
    for data in (None, demo_csv, demo_rows):  # the training data: evaluated on the test set of the run by default
        assert model.evaluate(data)["mae"] == pytest.approx(test["mae"], rel=1e-5)
        assert model.evaluate(data, split="all")["mae"] == pytest.approx(mae_of_all, rel=1e-5)
    renamed = demo_rows.rename(columns={"gap_ev": "gap", "smiles": "molecule"}).drop(columns="split")
    scores = model.evaluate(renamed, "gap", smiles="molecule")
    assert scores["mae"] == pytest.approx(mae_of_all, rel=1e-5) and scores["unanswered"] == 0
    assert set(scores["targets"]) == {"gap"} and scores["molecules"] == 60
    labels = demo_rows["gap_ev"].to_numpy()
    for data in ((demo_rows["smiles"], labels), {"smiles": demo_rows["smiles"], "gap_ev": labels}):
        assert model.evaluate(data)["mae"] == pytest.approx(mae_of_all, rel=1e-5)
    assert model.evaluate(demo_rows[:20].assign(split="test"))["molecules"] == 20
    bad = demo_rows[:5].drop(columns="split")
    bad.loc[0, "smiles"] = "oops"
    assert model.evaluate(bad)["unanswered"] == 1


@pytest.mark.parametrize("name", ["model", "ensemble"])
def test_saved_model_predicts_the_same(name, request, cli, tmp_path):
    model = request.getfixturevalue(name)
    for _ in range(2):  # a notebook cell may be run again
        model.save(tmp_path / "kept")
    again = gs.load(tmp_path / "kept", "cpu")
    np.testing.assert_array_equal(again.predict(SMILES), model.predict(SMILES))
    code, out, _ = cli("predict", tmp_path / "kept", *SMILES)
    assert code == 0 and len(out.splitlines()) == 7
    assert again.metrics == model.metrics
    again.save(tmp_path / "kept")  # overwrites its own directory
    np.testing.assert_array_equal(gs.load(tmp_path / "kept", "cpu").predict(SMILES), model.predict(SMILES))
    assert not [path.name for path in (tmp_path / "kept").iterdir() if path.name.startswith(".")]


def test_saving_a_model_replaces_an_ensemble_but_keeps_other_files(model, ensemble, tmp_path):
    ensemble.save(tmp_path / "kept")
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    model.save(tmp_path / "kept")
    np.testing.assert_array_equal(gs.load(tmp_path / "kept", "cpu").predict(SMILES), model.predict(SMILES))
    assert (tmp_path / "kept" / "notes.txt").read_text() == "mine"
    with pytest.raises(gs.InputError, match="cannot write"):
        model.save(tmp_path / "kept" / "notes.txt")


def test_pickled_and_copied_models_predict_the_same(model, ensemble, demo_rows):
    for one in (ensemble, model):
        for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            np.testing.assert_array_equal(again.predict(SMILES), one.predict(SMILES))
            assert isinstance(again, Model) and again.targets == one.targets and again.folder is None
    rows = [int(name.removeprefix("row ")) - 1 for name in again.predict(SMILES, nearest=True).neighbours.nearest]
    assert demo_rows["smiles"].iloc[rows].tolist() == model.predict(SMILES, nearest=True).neighbours.nearest


def test_model_keeps_its_folder_in_another_working_directory(run_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(run_directory.parent)
    model = gs.load(run_directory.name, "cpu")
    expected = model.evaluate()
    monkeypatch.chdir(tmp_path)
    assert model.evaluate() == expected
    model.save("kept")
    assert gs.load("kept", "cpu").evaluate() == expected
    shutil.rmtree("kept")
