import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

import graphslice as gs
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import align_targets, evaluate, load_evaluation_data
from graphslice.inference.predictor import load
from graphslice.training import train


@pytest.fixture
def dataset(demo_csv):
    return load_dataset(DataConfig(dataset=str(demo_csv)))


@pytest.mark.parametrize("split", ["test", "all"])
def test_scores_match_manual_computation(split, dataset, predictor, demo_rows):
    rows = demo_rows if split == "all" else demo_rows[demo_rows["split"] == split]
    predicted = predictor.predict(rows["smiles"])[:, 0]
    result = evaluate(predictor, dataset, split, dataset.splits)
    assert result["mae"] == pytest.approx(np.abs(predicted - rows["gap_ev"]).mean(), rel=1e-6)
    assert result["molecules"] == len(rows) and result["unanswered"] == 0 and list(result["targets"]) == ["gap_ev"]


def test_bounds_of_some_of_the_targets_of_a_model(make_predictor, demo_rows, tmp_path):
    """A target that is not evaluated, and an unlabelled cell of one that is, have no bounds."""
    table = pd.DataFrame({"smiles": demo_rows["smiles"], "a": 1.0, "b": ["2", ">1", "<0", ""] * 15})
    table.loc[3::8, "a"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    model = gs.Model(make_predictor(1.0, ("a", "c", "b")).checkpoints, "cpu")
    result = model.evaluate(tmp_path / "t.csv")["targets"]
    predicted = model.predict(demo_rows["smiles"])[:, 2]
    respected = np.concatenate([predicted[1::4] > 1, predicted[2::4] < 0])
    assert result["b"]["bounds"] == 30 and result["b"]["bounds_respected"] == pytest.approx(respected.mean())
    assert not result["a"].get("bounds") and result["a"]["molecules"] == 60 - len(table.loc[3::8])


def test_training_molecules_are_counted(dataset, run_directory, demo_rows):
    """Molecules with the fingerprint of a training molecule count too."""
    model = load(run_directory, "cpu")
    training = demo_rows["smiles"][demo_rows["split"] == "train"]
    generator = AllChem.GetMorganGenerator(2, fpSize=DOMAIN_BITS)
    known = {generator.GetFingerprint(Chem.MolFromSmiles(one)).ToBitString() for one in training}
    is_known = [generator.GetFingerprint(Chem.MolFromSmiles(one)).ToBitString() in known for one in dataset.smiles]
    assert evaluate(model, dataset, "train", dataset.splits)["learned"] == len(training)
    assert evaluate(model, dataset, "all", None)["learned"] == sum(is_known) >= len(training)


def test_rows_without_label_or_prediction_are_left_out(tmp_path, predictor):
    table = pd.DataFrame({"smiles": ["CCO", "oops", "CCN", "CCC"], "gap_ev": [1.0, 2.0, None, 4.0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    dataset = load_dataset(DataConfig(dataset=str(tmp_path / "t.csv")))
    result = evaluate(predictor, dataset, "all", None)
    predicted = predictor.predict(["CCO", "CCC"])[:, 0]
    assert result["unanswered"] == 1 and result["molecules"] == 2 and result["first_unanswered"][1]
    assert result["mae"] == pytest.approx(np.abs(predicted - [1, 4]).mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("smiles", "y", "split", "splits", "message"),
    [
        (["C"], [1.0], "tset", {"train": np.array([0])}, "must be train or all, not 'tset'"),
        (
            ["C", "N"],
            ["high", 1.0],
            "test",
            {"test": np.array([0])},
            "no usable labels in the split test; the first, row 1",
        ),
        (["oops"], [1.0], "all", None, "no molecule could be predicted; the first: not a valid molecule"),
    ],
)
def test_evaluate_rejects_splits_without_predictions(smiles, y, split, splits, message, tmp_path, predictor):
    pd.DataFrame({"smiles": smiles, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=message):
        evaluate(predictor, load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="y")), split, splits)


def _mae(out: str) -> tuple[str, float]:
    return (m := re.search(r" (\w+): MAE ([\d.]+), .* on", out))[1], float(m[2])


def test_evaluate_command_prints_the_scores(cli, run_directory, dataset, predictor):
    for split in ("test", "valid", "all"):
        code, out, err = cli("evaluate", run_directory, "--split", split, "--device", "cpu")
        assert code == 0 and ("at least 47 of the molecules" in err) == (split == "all")
        assert ("the coverage is no test" in err) == (split != "test")
        assert err.count("\n") == {"test": 0, "valid": 1, "all": 2}[split]
        assert _mae(out) == (split, pytest.approx(evaluate(predictor, dataset, split, dataset.splits)["mae"], abs=1e-6))
    assert cli("evaluate", run_directory)[1] == cli("evaluate", run_directory, "--split", "test")[1]
    assert cli("evaluate", run_directory / "model.safetensors")[1] == cli("evaluate", run_directory)[1]


def test_dataset_with_some_of_the_targets(cli, tmp_path):
    """Targets are matched by name in any order; the others have no labels."""
    model, smiles = gs.load("gap", "cpu"), ["CCO", "c1ccccc1", "CC(=O)N"]
    index = {name: i for i, name in enumerate(model.targets)}
    predictions = model.predict(smiles).astype(float)
    labels = {name: predictions[:, i] + i + 1 for name, i in index.items()}
    every = pd.DataFrame({"smiles": smiles, **labels})
    some = pd.DataFrame({"lumo": labels["lumo"], "smiles": smiles, "homo": labels["homo"]})
    for frame, targets, evaluated in (
        (some, None, ["homo", "lumo"]),
        (some, "lumo", ["lumo"]),
        (some, "lumo,homo", ["homo", "lumo"]),
        (every, ["dipole", "homo"], ["homo", "dipole"]),
        (every.rename(columns={"gap": "g"}), None, ["homo", "lumo", "dipole"]),
        (every.rename(columns={name: f"{name}_2" for name in index}), [f"{name}_2" for name in index], list(index)),
    ):
        result = model.evaluate(frame, targets)
        errors = dict(zip(index, (one["mae"] for one in result["targets"].values()), strict=True))
        assert {name: value for name, value in errors.items() if not np.isnan(value)} == pytest.approx(
            {name: index[name] + 1 for name in evaluated}, rel=1e-5
        )
        assert result["mae"] == pytest.approx(np.mean([index[name] + 1 for name in evaluated]), rel=1e-5)
        path = tmp_path / "t.csv"
        frame.to_csv(path, index=False)
        names = targets if isinstance(targets, str) or targets is None else ",".join(targets)
        code, out, _ = cli("evaluate", "gap", "--dataset", path, *([] if names is None else ["--targets", names]))
        assert code == 0 and _mae(out) == ("all", pytest.approx(result["mae"], abs=1e-5))
        assert ("no labels for" in out) == (len(evaluated) < 4) and ("(lumo)" in out) == (evaluated == ["lumo"])
    assert "has no column 'gap'" in cli("evaluate", "gap", "--dataset", path, "--targets", "gap,homo")[2]
    some.to_csv(path, index=False)
    featurize_dataset(DataConfig(str(path), targets="lumo,homo"), GraphConfig(), tmp_path / "t.arrow", workers=1)
    of_store, of_table, named = (
        cli("evaluate", "gap", *data, "--json") for data in ([tmp_path / "t.arrow"], [path], ["--dataset", path])
    )  # the file may also follow the model
    assert of_table == named and of_store[1].replace("t.arrow", "t.csv") == named[1] and named[0] == of_store[0] == 0


def test_labels_that_cannot_be_read_are_reported(cli, tmp_path):
    """A row with another label is evaluated by that one."""
    path = tmp_path / "t.csv"
    frame = pd.DataFrame({"smiles": ["CCO", "CCN"], "gap": ["5,1", "4,2"], "homo": [-6.0, -5.0]})
    frame.to_csv(path, index=False)
    code, out, err = cli("evaluate", "gap", "--dataset", path)
    assert code == 0 and "on 2 molecules (homo)" in out and "no labels for 'gap', 'lumo', 'dipole'" in out
    unread = "2 rows are evaluated without an invalid label"
    assert unread in err
    with pytest.warns(UserWarning, match=unread):
        gs.load("gap", "cpu").evaluate(frame)
    frame[["smiles"]].to_csv(path, index=False)
    code, _, err = cli("evaluate", "gap", "--dataset", path)
    assert code == 2 and "no column 'gap'" in err


def test_average_of_runs_is_evaluated_on_molecules_that_none_has_seen(
    run_directory, demo_csv, demo_rows, tiny_config, tmp_path, cli
):
    train(tiny_config(demo_csv, trainer={"seed": 1}), tmp_path / "same")  # split by the same column
    test = demo_rows[demo_rows["split"] == "test"]
    predicted = [load(run, "cpu").predict(test["smiles"])[:, 0] for run in (run_directory, tmp_path / "same")]
    code, out, _ = cli("evaluate", run_directory, tmp_path / "same")
    expected = np.abs(np.mean(predicted, axis=0) - test["gap_ev"]).mean()
    assert code == 0 and float(re.search(r"test: MAE ([\d.]+)", out)[1]) == pytest.approx(expected, abs=2e-6)
    splits = tmp_path / "same" / "split.csv"
    splits.write_text(splits.read_text().replace(",test,", ",train,", 1))
    code, _, err = cli("evaluate", run_directory, tmp_path / "same")
    assert code == 2 and "not 'test'" in err


def test_run_on_decimal_commas_evaluates_and_predicts_files_with_them(cli, demo_rows, tiny_config, tmp_path):
    table, path = demo_rows[["smiles", "gap_ev"]].assign(x=demo_rows["gap_ev"] / 3), tmp_path / "t.csv"
    table.to_csv(path, sep=";", decimal=",", index=False)
    train(tiny_config(path, data={"targets": "gap_ev", "features": "x", "decimal": "comma"}), tmp_path / "run")
    model = gs.load(tmp_path / "run", "cpu")
    expected = np.abs(model.predict(table)[:, 0] - table["gap_ev"]).mean()
    texts = table.astype({"gap_ev": str, "x": str}).replace(r"\.", ",", regex=True)
    assert model.evaluate(table, split="all")["mae"] == pytest.approx(expected, rel=1e-5)
    assert model.evaluate(texts, split="all")["mae"] == pytest.approx(expected, rel=1e-5)
    code, out, err = cli("evaluate", tmp_path / "run", "--dataset", path, "--split", "all")
    assert code == 0 and f"MAE {expected:.4f}"[:-1] in out, err
    assert cli("predict", tmp_path / "run", path, "-o", tmp_path / "out.csv")[0] == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["gap_ev_pred"], model.predict(texts)[:, 0], rtol=1e-4)


def test_run_on_a_long_table_evaluates_long_and_wide_tables(cli, demo_rows, tiny_config, tmp_path):
    wide = demo_rows[["smiles", "gap_ev"]].assign(other=demo_rows["gap_ev"] ** 2)
    wide.melt("smiles", var_name="assay").to_csv(tmp_path / "long.csv", index=False)
    config = tiny_config(tmp_path / "long.csv", data={"targets": None, "long": "assay,value"})
    result = train(config, tmp_path / "run")
    model = gs.load(tmp_path / "run", "cpu")
    assert model.targets == ["gap_ev", "other"] and len(result.data.dataset) == len(wide)
    again = model.evaluate()  # of the training data, by its fingerprint
    assert again["mae"] == pytest.approx(result.metrics["test"]["mae"], rel=1e-5)
    expected = np.abs(model.predict(wide["smiles"])[:, 1] - wide["other"]).mean()
    wide[["smiles", "other"]].melt("smiles", var_name="assay").to_csv(tmp_path / "one.csv", index=False)
    for table in (wide[["smiles", "other"]], pd.read_csv(tmp_path / "one.csv")):
        assert model.evaluate(table, split="all")["targets"]["other"]["mae"] == pytest.approx(expected, rel=1e-5)
    renamed = tmp_path / "renamed.csv"
    pd.read_csv(tmp_path / "one.csv").rename(columns={"assay": "endpoint"}).to_csv(renamed, index=False)
    code, out, err = cli("evaluate", tmp_path / "run", "--dataset", renamed, "--long", "endpoint,value")
    assert code == 0 and f"MAE {expected:.4f}"[:-1] in out, err


def test_smiles_column_of_the_training_is_preferred(predictor, demo_csv, tmp_path, monkeypatch):
    """Preprocessed and built-in datasets have no columns; a folder with the name of a dataset does not matter."""
    data = replace(predictor.config.data, smiles_column="compound")
    monkeypatch.setattr(predictor, "config", replace(predictor.config, data=data))
    frame = pd.DataFrame({"smiles": ["no"], "compound": ["CCO"], "gap_ev": [1.5]})
    frame.to_csv(tmp_path / "with.csv", index=False)
    frame.drop(columns="compound").to_csv(tmp_path / "without.csv", index=False)
    featurize_dataset(DataConfig(str(demo_csv), targets="gap_ev"), GraphConfig(), tmp_path / "t.arrow", workers=1)
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    names = ("with.csv", "without.csv", "t.arrow", "demo")
    loaded = {name: load_evaluation_data(predictor, None, {"dataset": name}) for name in names}
    assert loaded["with.csv"][0].smiles == ["CCO"] and loaded["without.csv"][0].smiles == ["no"]
    assert len(loaded["t.arrow"][0]) == 60 and len(loaded["demo"][0]) > 4_000
    assert list(loaded["demo"][1]) == ["train", "valid", "test"]


def test_split_all_ignores_a_column_of_other_splits(cli, run_directory, predictor, tmp_path):
    rows = pd.DataFrame({"smiles": ["CCO", "CC"], "gap_ev": [1.5, 2.0], "split": ["A", "B"]})
    rows.to_csv(tmp_path / "t.csv", index=False)
    assert cli("evaluate", run_directory, "--dataset", tmp_path / "t.csv")[0] == 2
    code, out, _ = cli("evaluate", run_directory, "--dataset", tmp_path / "t.csv", "--split", "all")
    expected = np.abs(predictor.predict(rows["smiles"])[:, 0] - rows["gap_ev"]).mean()
    assert code == 0 and _mae(out) == ("all", pytest.approx(expected, abs=1e-5))
    assert gs.load(run_directory, "cpu").evaluate(rows, split="all")["mae"] == pytest.approx(expected, rel=1e-6)


def test_evaluate_uses_the_split_of_the_run_and_its_data(cli, demo_rows, tiny_config, tmp_path):
    """Training molecules must not be in the test set, whatever the column 'split' of the file says."""
    demo_rows.to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(tmp_path / "t.csv", data={"split": "scaffold"}, trainer={"max_epochs": 1})
    result = train(config, tmp_path / "run")
    for model in (tmp_path / "run", tmp_path / "run" / "model.safetensors"):
        code, out, _ = cli("evaluate", model)
        assert code == 0 and _mae(out) == ("test", pytest.approx(result.metrics["test"]["mae"], abs=1e-5))
    demo_rows.tail(59).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = cli("evaluate", tmp_path / "run", "--split", "test")
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and "changed" in err


def test_names_of_the_model_in_other_places_are_rejected(make_predictor, demo_rows, tmp_path):
    """Each column would be compared with the target in its place."""
    predictor = make_predictor(1.0, targets=["a", "b"])
    columns = {"b": demo_rows["gap_ev"], "a2": demo_rows["gap_ev"]}
    demo_rows[["smiles"]].assign(**columns).to_csv(tmp_path / "t.csv", index=False)
    dataset = load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets="b,a2"))
    with pytest.raises(InputError, match="name a column for each of 'a', 'b', in this order, or some of these"):
        align_targets(predictor, dataset, "b,a2")
