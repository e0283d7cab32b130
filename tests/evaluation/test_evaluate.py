from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

import graphslice as gs
from graphslice.calibration.applicability_domain import DOMAIN_BITS
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.featurize import featurize_dataset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import evaluate, load_evaluation_data, predict_rows, read_splits
from graphslice.inference.predictor import load
from graphslice.training import train


@pytest.fixture
def source(demo_csv):
    return load_dataset(DataConfig(dataset=str(demo_csv)))


@pytest.mark.parametrize("split", ["train", "valid", "test", "all"])
def test_by_hand(split, source, predictor, demo_rows):
    rows = demo_rows if split == "all" else demo_rows[demo_rows["split"] == split]
    predicted = predictor.predict(rows["smiles"])[:, 0]
    found = evaluate(predictor, source, split, source.splits)
    assert found["mae"] == pytest.approx(np.abs(predicted - rows["gap_ev"]).mean(), rel=1e-6)
    assert found["molecules"] == len(rows) and found["unanswered"] == 0 and list(found["targets"]) == ["gap_ev"]


def test_molecules_that_were_learned_are_told(source, run_directory, demo_rows, monkeypatch):
    """And those of one fingerprint with such; whatever the chunks."""
    model = load(run_directory, "cpu")
    learned = demo_rows["smiles"][demo_rows["split"] == "train"]
    fingerprints = AllChem.GetMorganGenerator(2, fpSize=DOMAIN_BITS)
    known = {fingerprints.GetFingerprint(Chem.MolFromSmiles(one)).ToBitString() for one in learned}
    among = [fingerprints.GetFingerprint(Chem.MolFromSmiles(one)).ToBitString() in known for one in source.smiles]
    monkeypatch.setattr("graphslice.evaluation.evaluate._CHUNK_ROWS", 7)
    assert evaluate(model, source, "train", source.splits)["learned"] == len(learned)
    assert evaluate(model, source, "all", None)["learned"] == sum(among) >= len(learned)


def test_scores_are_those_of_the_run(source, predictor, run_directory):
    metrics = json.loads((run_directory / "metrics.json").read_text())
    for split in ("valid", "test"):
        found = evaluate(predictor, source, split, read_splits(run_directory))
        assert found["mae"] == pytest.approx(metrics[split]["mae"], rel=1e-6)


def test_splits_of_run(run_directory, demo_rows, tmp_path):
    splits = read_splits(run_directory)
    for split in ("train", "valid", "test"):
        assert splits[split].tolist() == np.flatnonzero(demo_rows["split"] == split).tolist()
    assert read_splits(tmp_path) is None


def test_rows_without_label_or_prediction(tmp_path, predictor):
    table = pd.DataFrame({"smiles": ["CCO", "oops", "CCN", "CCC"], "gap_ev": [1.0, 2.0, None, 4.0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    source = load_dataset(DataConfig(dataset=str(tmp_path / "t.csv")))
    found = evaluate(predictor, source, "all", None)
    predicted = predictor.predict(["CCO", "CCC"])[:, 0]
    assert found["unanswered"] == 1 and found["molecules"] == 2
    assert found["mae"] == pytest.approx(np.abs(predicted - [1, 4]).mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "split", "splits", "reason"),
    [
        ({"smiles": ["C"], "y": [1.0]}, "test", None, "has no splits: give --split all"),
        ({"smiles": ["C"], "y": [1.0]}, "tset", {"train": np.array([0])}, "no split 'tset': it has train and all"),
        ({"smiles": ["C", "N"], "y": [None, 1.0]}, "test", {"test": np.array([0])}, "no labels in test"),
        ({"smiles": ["oops"], "y": [1.0]}, "all", None, "no molecule .* could be predicted; the first: not a possible"),
    ],
)
def test_nothing_to_judge(rows, split, splits, reason, tmp_path, predictor):
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=reason):
        evaluate(predictor, load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="y")), split, splits)


def test_predict_rows_in_the_order_asked_for(source, predictor, monkeypatch):
    rows = np.array([5, 0, 5, 59])
    monkeypatch.setattr("graphslice.evaluation.evaluate._CHUNK_ROWS", 3)
    found = predict_rows(predictor, source, rows)
    np.testing.assert_allclose(found.values, predictor.predict([source.smiles[row] for row in rows]), rtol=1e-6)
    assert found.errors == [None] * 4
    assert predict_rows(predictor, source, np.array([], np.int64)).values.shape == (0, 1)


# --- through the command line -------------------------------------------------------------------


def _mae(out: str) -> tuple[str, float]:
    return (m := re.search(r" (\w+): MAE ([\d.]+), .* on", out))[1], float(m[2])


def test_command(cli, run_directory, source, predictor):
    for split in ("test", "valid", "all"):
        code, out, err = cli("evaluate", run_directory, "--split", split, "--device", "cpu")
        assert code == 0 and err.startswith("at least 47 of the molecules") == (split == "all")
        assert err.count("\n") == (split == "all")
        assert _mae(out) == (split, pytest.approx(evaluate(predictor, source, split, source.splits)["mae"], abs=1e-6))
    assert cli("evaluate", run_directory)[1] == cli("evaluate", run_directory, "--split", "test")[1]
    assert cli("evaluate", run_directory / "best.ckpt")[1] == cli("evaluate", run_directory)[1]


def test_other_labelled_file(cli, run_directory, predictor, tmp_path):
    table = pd.DataFrame({"mol": ["CCO", "oops"], "gap": [1.5, 2.0], "smiles": ["no", "no"]})
    table.to_csv(tmp_path / "other.csv", index=False)
    flags = ("--dataset", tmp_path / "other.csv", "--smiles-column", "mol", "--targets", "gap")
    code, out, err = cli("evaluate", run_directory, *flags)
    assert code == 0 and "1 molecules have no prediction" in err
    assert _mae(out) == ("all", pytest.approx(abs(predictor.predict("CCO")[0, 0] - 1.5), abs=1e-5))


def test_a_table_with_some_of_the_targets(cli, tmp_path):
    """They are found by their names, whatever their order, and the others have no labels."""
    model, smiles = gs.load("gap", "cpu"), ["CCO", "c1ccccc1", "CC(=O)N"]
    places = {name: place for place, name in enumerate(model.targets)}
    answers = model.predict(smiles).astype(float)
    labels = {name: answers[:, place] + place + 1 for name, place in places.items()}
    whole = pd.DataFrame({"smiles": smiles, **labels})
    some = pd.DataFrame({"lumo": labels["lumo"], "smiles": smiles, "homo": labels["homo"]})
    for frame, asked, judged in (
        (some, None, ["homo", "lumo"]),
        (some, "lumo", ["lumo"]),
        (some, "lumo,homo", ["homo", "lumo"]),
        (whole, ["dipole", "homo"], ["homo", "dipole"]),
        (whole.rename(columns={"gap": "g"}), None, ["homo", "lumo", "dipole"]),
        (whole.rename(columns={name: f"{name}_2" for name in places}), [f"{name}_2" for name in places], list(places)),
    ):
        found = model.evaluate(frame, asked)
        errors = dict(zip(places, (one["mae"] for one in found["targets"].values()), strict=True))
        assert {name: value for name, value in errors.items() if not np.isnan(value)} == pytest.approx(
            {name: places[name] + 1 for name in judged}, rel=1e-5
        )
        assert found["mae"] == pytest.approx(np.mean([places[name] + 1 for name in judged]), rel=1e-5)
        path = tmp_path / "t.csv"
        frame.to_csv(path, index=False)
        named = asked if isinstance(asked, str) or asked is None else ",".join(asked)
        code, out, _ = cli("evaluate", "gap", "--dataset", path, *([] if named is None else ["--targets", named]))
        assert code == 0 and _mae(out) == ("all", pytest.approx(found["mae"], abs=1e-5))
        assert ("no labels of" in out) == (len(judged) < 4) and ("(lumo)" in out) == (judged == ["lumo"])
    assert "has no column 'gap'" in cli("evaluate", "gap", "--dataset", path, "--targets", "gap,homo")[2]


def test_some_targets_of_what_was_learned(demo_rows, tiny_config, tmp_path):
    """Judged on the test molecules, not on those that were learned."""
    rows = demo_rows[:60].assign(atoms=demo_rows["smiles"][:60].str.len())
    rows.to_csv(tmp_path / "t.csv", index=False)
    train(tiny_config(tmp_path / "t.csv", data={"targets": "gap_ev,atoms"}), tmp_path / "run")
    model = gs.load(tmp_path / "run", "cpu")
    every = model.evaluate()["targets"]
    for found in (model.evaluate(targets="atoms"), model.evaluate(rows, "atoms"), model.evaluate(rows, ["atoms"])):
        assert found["targets"]["atoms"] == every["atoms"] and found["targets"]["gap_ev"]["molecules"] == 0


def test_another_column_of_the_same_table(demo_rows, tiny_config, tmp_path):
    table = tmp_path / "t.csv"
    demo_rows[:20].assign(again=demo_rows["smiles"][:20].to_numpy()[::-1]).to_csv(table, index=False)
    train(tiny_config(table, data={"smiles_column": "smiles"}), tmp_path / "run")
    predictor = load(tmp_path / "run", "cpu")
    source, splits = load_evaluation_data(predictor, tmp_path / "run", {"smiles_column": "again"})
    assert source.smiles == demo_rows["smiles"][:20].tolist()[::-1] and splits is None


def test_the_column_of_smiles_that_was_learned(predictor, tmp_path, monkeypatch):
    data = replace(predictor.config.data, smiles_column="compound")
    monkeypatch.setattr(predictor, "config", replace(predictor.config, data=data))
    rows = {"smiles": ["no"], "compound": ["CCO"], "gap_ev": [1.5]}
    for name, column in (("with.csv", "compound"), ("without.csv", "smiles")):
        frame = pd.DataFrame(rows).drop(columns=[] if column == "compound" else "compound")
        frame.to_csv(tmp_path / name, index=False)
        source, _ = load_evaluation_data(predictor, None, {"dataset": str(tmp_path / name)})
        assert source.smiles == rows[column]


def test_a_column_that_was_learned_and_data_without_columns(predictor, demo_csv, tmp_path, monkeypatch):
    """A store, and data that is named, also where a folder is called so."""
    data = replace(predictor.config.data, smiles_column="compound")
    monkeypatch.setattr(predictor, "config", replace(predictor.config, data=data))
    featurize_dataset(DataConfig(str(demo_csv), targets="gap_ev"), GraphConfig(), tmp_path / "t.arrow", workers=1)
    source, _ = load_evaluation_data(predictor, None, {"dataset": str(tmp_path / "t.arrow")})
    assert len(source) == 60
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_evaluation_data(predictor, None, {"dataset": "demo"})[0]) > 4_000


def test_all_rows_of_a_table_with_other_splits(cli, run_directory, predictor, tmp_path):
    rows = pd.DataFrame({"smiles": ["CCO", "CC"], "gap_ev": [1.5, 2.0], "split": ["A", "B"]})
    rows.to_csv(tmp_path / "t.csv", index=False)
    assert cli("evaluate", run_directory, "--dataset", tmp_path / "t.csv")[0] == 2
    code, out, _ = cli("evaluate", run_directory, "--dataset", tmp_path / "t.csv", "--split", "all")
    expected = np.abs(predictor.predict(rows["smiles"])[:, 0] - rows["gap_ev"]).mean()
    assert code == 0 and _mae(out) == ("all", pytest.approx(expected, abs=1e-5))
    assert gs.load(run_directory, "cpu").evaluate(rows, split="all")["mae"] == pytest.approx(expected, rel=1e-6)


def test_why_there_is_no_label_is_told(cli, run_directory, tmp_path):
    pd.DataFrame({"smiles": ["CCO"], "gap_ev": ["high"]}).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = cli("evaluate", run_directory, "--dataset", tmp_path / "t.csv")
    assert code == 2 and "no labels in all" in err and "the first, row 1: target 'gap_ev' is not a finite" in err


def test_the_demo_set_where_a_folder_is_called_so(predictor, tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    source, splits = load_evaluation_data(predictor, None, {"dataset": "demo"})
    assert source.name == "demo" and len(source) > 4_000 and list(splits) == ["train", "valid", "test"]


@pytest.fixture(scope="module", params=["random", "scaffold"])
def split_run(request, demo_csv, tiny_config, tmp_path_factory):
    """A run that was told to split by itself, of a file that has a column 'split' too."""
    folder = tmp_path_factory.mktemp("split") / "run"
    train(tiny_config(demo_csv, data={"split": request.param}, trainer={"max_epochs": 1}), folder)
    return folder


@pytest.mark.parametrize("model", ["", "best.ckpt"])
def test_the_runs_own_split_is_judged(cli, split_run, model):
    """Molecules that the model was trained on are no test."""
    test = json.loads((split_run / "metrics.json").read_text())["test"]
    code, out, _ = cli("evaluate", split_run / model)
    assert code == 0 and _mae(out) == ("test", pytest.approx(test["mae"], abs=1e-5))


@pytest.mark.parametrize("rows", [20, 59])
def test_the_file_has_changed_since(rows, cli, demo_rows, tiny_config, tmp_path):
    """The rows that the run noted for its splits are other molecules now, or none."""
    table = demo_rows[["smiles", "gap_ev"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    train(tiny_config(tmp_path / "t.csv", trainer={"max_epochs": 1}), tmp_path / "run")
    table.tail(rows).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = cli("evaluate", tmp_path / "run", "--split", "test")
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and "changed" in err
