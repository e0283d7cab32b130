"""Prediction intervals, prediction sets and nearest training molecules, from a run to the output file."""

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
from invariance import check_batch_independence
from rdkit import Chem

import graphslice as gs
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import BEST, read_splits
from graphslice.training import train


@pytest.fixture(scope="module")
def calibrated(demo_rows, tiny_config, tmp_path_factory):
    """A run on 200 molecules with a regression, a multiclass and a binary target: directory, data and metrics."""
    folder = tmp_path_factory.mktemp("calibrated")
    table = pd.concat([demo_rows, demo_rows.assign(smiles="C" + demo_rows["smiles"])], ignore_index=True)[:200]
    table = table[["smiles", "gap_ev"]]
    table["size"] = pd.qcut(table["smiles"].str.len(), 3, labels=["small", "mid", "large"]).astype(str)
    table["wide"] = np.where(table["gap_ev"] > table["gap_ev"].median(), "yes", "no")
    table["split"] = np.resize(["train", "train", "valid", "test"], len(table))
    table.to_csv(folder / "t.csv", index=False)
    config = tiny_config(folder / "t.csv", data={"targets": "gap_ev,size,wide", "split": "split"})
    result = train(config, folder / "run")
    return folder / "run", table, result.metrics


def test_molecules_with_several_rows_count_once(demo_rows, tiny_config, tmp_path):
    """Measurements at several temperatures count as one molecule, for intervals and for the domain threshold."""
    table = pd.concat([demo_rows[["smiles", "gap_ev", "split"]].assign(celsius=t) for t in (10, 20, 30)])
    table.to_csv(tmp_path / "t.csv", index=False)
    data = {"targets": "gap_ev", "features": "celsius", "split": "split"}
    train(tiny_config(tmp_path / "t.csv", data=data, trainer={"max_epochs": 1}), tmp_path / "run")
    calibration = gs.load(tmp_path / "run", "cpu").calibration
    molecules = (demo_rows["split"] == "valid").sum()
    (scores,) = calibration.targets[0].scores
    assert len(scores.values) == 3 * molecules and (scores.counts == 3).all()
    assert np.isfinite(scores.quantile(molecules / (molecules + 1))) and scores.quantile(0.999) == np.inf
    assert calibration.domain.threshold < 0.9


def test_intervals_cover_the_validation_set(calibrated):
    """Intervals are centred on the prediction; their half-width is a quantile of the absolute validation errors."""
    folder, table, metrics = calibrated
    predictor = gs.load(folder, "cpu")
    predictions = predictor.predict(table["smiles"].tolist(), interval=80)
    low, high = predictions.interval.low[:, 0], predictions.interval.high[:, 0]
    np.testing.assert_allclose((low + high) / 2, predictions.values[:, 0], rtol=1e-4)
    rows = read_splits(folder)["valid"]
    inside = (low[rows] <= table["gap_ev"][rows]) & (table["gap_ev"][rows] <= high[rows])
    assert 0.78 <= inside.mean() <= 0.9
    wider = predictor.predict(table["smiles"].tolist(), interval=95).interval
    finite = np.isfinite(low)
    assert (wider.low[finite, 0] <= low[finite]).all() and (wider.high[finite, 0] >= high[finite]).all()
    test = metrics["test"]["targets"]
    rows = read_splits(folder)["test"]
    ninety = predictor.predict(table["smiles"][rows].tolist(), interval=90)
    y = table["gap_ev"][rows].to_numpy()
    inside = (ninety.interval.low[:, 0] <= y) & (y <= ninety.interval.high[:, 0])
    assert test["gap_ev"]["coverage_90"] == pytest.approx(inside.mean())
    covered = ninety.interval.sets["wide"][np.arange(len(rows)), (table["wide"][rows] == "yes").astype(int)]
    assert test["wide"]["coverage_90"] == pytest.approx(covered.mean()) and test["wide"]["temperature"] > 0


def test_intervals_and_similarity_do_not_depend_on_batch_or_notation(calibrated):
    predictor = gs.load(calibrated[0], "cpu")
    molecules = [*calibrated[1]["smiles"][:12], "OCC", "[Na+].[Cl-]", "C[C@H](N)O"]
    for bound in ("low", "high"):
        check_batch_independence(
            lambda smiles, b=bound: getattr(predictor.predict(smiles, interval=90).interval, b)[:, 0], molecules
        )
    check_batch_independence(lambda smiles: predictor.predict(smiles, nearest=True).neighbours.similarity, molecules)


def test_nearest_training_molecules(calibrated):
    folder, table, _ = calibrated
    predictor = gs.load(folder, "cpu")
    training = table["smiles"][read_splits(folder)["train"]].tolist()
    molecules = [training[3], Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(training[5]), 1, 0)[0], "oops", "[U]"]
    predictions = predictor.predict(molecules, nearest=True)
    near = predictions.neighbours
    assert [Chem.CanonSmiles(smiles) for smiles in near.nearest[:2]] == [Chem.CanonSmiles(training[i]) for i in (3, 5)]
    np.testing.assert_allclose(near.similarity[:2], 1)
    assert near.nearest[2] is None and np.isnan(near.similarity[2]) and not near.in_domain[2]
    assert near.similarity[3] < 0.3 and not near.in_domain[3] and near.in_domain[:2].all()
    assert predictions.interval is None
    checkpoint = Predictor(read_checkpoint(folder / BEST), "cpu")  # a checkpoint alone holds rows, no structures
    row = int(checkpoint.predict(training[3], nearest=True).neighbours.nearest[0].removeprefix("row "))
    assert table["smiles"][row - 1] == training[3]
    contents = (folder / BEST).read_bytes()
    assert not any(smiles.encode() in contents for smiles in training if len(smiles) > 12)


def test_output_file_matches_predict(calibrated, cli, tmp_path):
    folder, table, _ = calibrated
    rows = [*table["smiles"][:5], "oops"]
    pd.DataFrame({"smiles": rows}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli(
        "predict", folder, tmp_path / "in.csv", "-o", tmp_path / "out.csv", "--interval", 90, "--nearest"
    )
    assert code == 0, err
    output = pd.read_csv(tmp_path / "out.csv")
    assert list(output) == [
        *("smiles", "gap_ev_pred", "gap_ev_low", "gap_ev_high"),
        *("size_pred", "size_prob_large", "size_prob_mid", "size_prob_small", "size_sure", "size_set"),
        *("wide_pred", "wide_prob_yes", "wide_sure", "in_domain", "similarity", "nearest", "error"),
    ]
    expected = gs.load(folder, "cpu").predict(rows, interval=90, nearest=True)
    np.testing.assert_allclose(output["gap_ev_low"], expected.interval.low[:, 0], rtol=1e-5)
    sets = [set() if isinstance(text, float) else set(text.split("|")) for text in output["size_set"]]
    names, expected_sets = ("large", "mid", "small"), expected.interval.sets["size"]
    assert sets == [{name for name, in_set in zip(names, row, strict=True) if in_set} for row in expected_sets]
    assert output["size_sure"][:5].tolist() == [
        one == {name} for one, name in zip(sets[:5], output["size_pred"][:5], strict=True)
    ]
    assert output["nearest"][:5].tolist() == expected.neighbours.nearest[:5]
    assert output.iloc[5][["gap_ev_low", "wide_sure", "in_domain", "similarity", "nearest"]].isna().all()
    frame = expected.to_frame()
    assert list(frame) == list(output)[1:] and len(frame) == len(output)
    for name, column in frame.items():
        assert column.isna().tolist() == output[name].isna().tolist(), name
        known = column.notna()
        pd.testing.assert_series_equal(column[known], output.loc[known, name], check_dtype=False, rtol=1e-4)
    assert (frame["size_pred"][:5] == expected.classes("size")[:5]).all() and frame["error"][5] == expected.errors[5]
    code, out, _ = cli("predict", folder, "CCO", "--interval", 80)
    assert code == 0 and out.splitlines()[0].endswith("wide_sure,in_domain,similarity,error")
    store = tmp_path / "s.arrow"
    assert cli("featurize", tmp_path / "in.csv", "-o", store)[0] == 0
    assert cli("predict", folder, store, "-o", tmp_path / "rows.csv", "--interval", 90)[0] == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "rows.csv")["gap_ev_high"], output["gap_ev_high"], rtol=1e-5)


def test_missing_calibration_is_an_error(calibrated):
    uncalibrated = Predictor(dataclasses.replace(read_checkpoint(calibrated[0] / BEST), calibration=None), "cpu")
    for options in ({"interval": 90}, {"nearest": True}):
        with pytest.raises(gs.InputError, match="no calibration"):
            uncalibrated.predict("CCO", **options)


def test_predicted_standard_deviations_scale_the_intervals(tiny_config, cli, tmp_path):
    """With the Gaussian loss, noisy labels give wide intervals; the model can be saved, loaded and inspected."""
    random = np.random.default_rng(0)
    smiles = [f"{'C' * n}{atom}{'C' * m}" for n in range(1, 15) for m in range(14) for atom in ("O", "N", "S")]
    noisy = np.array([len(text) > 14 for text in smiles])
    y = [text.count("N") + random.normal() * (3 if noise else 0.3) for text, noise in zip(smiles, noisy, strict=True)]
    wide = ["yes" if len(text) > 8 else "no" for text in smiles]
    pd.DataFrame({"smiles": smiles, "y": y, "z": 10 ** (np.array(y) / 30), "wide": wide}).to_csv(tmp_path / "t.csv")
    data = {"targets": "y,wide,z", "transform": "z=log", "split": "random"}
    settings = {"loss": "gaussian", "max_epochs": 20, "batch_size": 16}
    train(tiny_config(tmp_path / "t.csv", data=data, trainer=settings), tmp_path / "run")
    predictor = gs.load(tmp_path / "run", "cpu")
    assert predictor.config.model.tasks == 5 and predictor.predict("CCO").shape == (1, 3)
    interval = predictor.predict(smiles, interval=80).interval
    for t in (0, 2):
        assert "deviation of the network" in predictor.calibration.targets[t].weights
        widths = (interval.high - interval.low)[:, t]
        assert widths[noisy].mean() > 1.5 * widths[~noisy].mean()
    assert cli("inspect", tmp_path / "run", "CCO", "-o", tmp_path / "seen")[0] == 0


@pytest.mark.usefixtures("in_this_process")
def test_ensembles_and_folds_are_calibrated_on_held_out_molecules(demo_rows, tiny_config, tmp_path):
    """Every member contributes predictions of molecules outside its training set."""
    demo_rows[["smiles", "gap_ev"]].to_csv(tmp_path / "t.csv", index=False)
    for name, data, trainer in (("five", {}, {"ensemble": 2}), ("folds", {"folds": "2"}, {})):
        config = tiny_config(tmp_path / "t.csv", data=data, trainer={"max_epochs": 1, **trainer})
        train(config, tmp_path / name)
        predictor = gs.load(tmp_path / name, "cpu")
        member_splits = [read_splits(tmp_path / name / f"member-{member}") for member in (1, 2)]
        training = set(np.concatenate([splits["train"] for splits in member_splits]).tolist())
        validation = {row for splits in member_splits for row in splits["valid"]}
        assert name == "folds" or not training & set(member_splits[0]["test"].tolist())
        predictions = predictor.predict(demo_rows["smiles"].tolist(), interval=80, nearest=True)
        assert (predictions.interval.low[:, 0] < predictions.values[:, 0]).all()
        assert set(predictor.calibration.domain.rows.tolist()) == training
        (scores,) = predictor.calibration.targets[0].scores
        assert len(scores.values) == (60 if name == "folds" else len(validation))
        predictor.save(tmp_path / "kept")
        copies = pickle.loads(pickle.dumps(predictor)), gs.load(tmp_path / "kept", "cpu")
        for copied in (*copies, gs.load(tmp_path / "kept" / "member-1", "cpu")):
            again = copied.predict(demo_rows["smiles"].tolist(), interval=80)
            if len(copied.models) == 2:
                np.testing.assert_array_equal(again.interval.low, predictions.interval.low)
        nearest = [Chem.CanonSmiles(smiles) for smiles in predictions.neighbours.nearest]
        canonical = [Chem.CanonSmiles(smiles) for smiles in demo_rows["smiles"]]
        assert {row for row in range(60) if nearest[row] == canonical[row]} == training
    out_of_fold = pd.read_csv(tmp_path / "folds" / "out_of_fold.csv")
    errors = np.sort(np.abs(out_of_fold["gap_ev_pred"] - demo_rows["gap_ev"]))
    weights = predictor.calibration.targets[0].weights
    if set(weights) == {"constant"}:
        np.testing.assert_allclose(scores.values, errors, rtol=1e-4)
