"""Intervals, sets and nearest molecules, from a run to the table."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from invariance import check_batch_independence
from rdkit import Chem

import graphslice as gs
from graphslice.checkpoint import read_checkpoint
from graphslice.evaluation.evaluate import read_splits
from graphslice.inference.predictor import Predictor
from graphslice.run_files import BEST
from graphslice.training import train


@pytest.fixture(scope="module")
def calibrated(demo_rows, tiny_config, tmp_path_factory):
    """A run of 200 molecules with a number, three classes and yes or no; its folder and its table."""
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
    """As each of a table with several temperatures: in intervals and in the border of the domain."""
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


def test_intervals_without_an_end_are_told(run_directory, cli):
    """Of few molecules for validation."""
    molecules = (pd.read_csv(run_directory / "split.csv")["split"] == "valid").sum()
    assert molecules < 19
    code, out, err = cli("predict", run_directory, "CCO", "--interval", "95")
    assert code == 0 and "inf" in out
    assert "intervals of 'gap_ev' have no end: for 95% the model would have to be calibrated on 19 molecules" in err


def test_intervals_by_the_errors_of_validation(calibrated):
    """Without a difficulty that tells anything: the answer plus and minus a quantile of the absolute errors."""
    folder, table, metrics = calibrated
    predictor = gs.load(folder, "cpu")
    found = predictor.predict(table["smiles"].tolist(), interval=80)
    low, high = found.interval.low[:, 0], found.interval.high[:, 0]
    np.testing.assert_allclose((low + high) / 2, found.values[:, 0], rtol=1e-4)
    rows = read_splits(folder)["valid"]
    inside = (low[rows] <= table["gap_ev"][rows]) & (table["gap_ev"][rows] <= high[rows])
    assert 0.78 <= inside.mean() <= 0.9
    wider = predictor.predict(table["smiles"].tolist(), interval=95).interval
    answered = np.isfinite(low)
    assert (wider.low[answered, 0] <= low[answered]).all() and (wider.high[answered, 0] >= high[answered]).all()
    test = metrics["test"]["targets"]
    rows = read_splits(folder)["test"]
    ninety = predictor.predict(table["smiles"][rows].tolist(), interval=90)
    y = table["gap_ev"][rows].to_numpy()
    inside = (ninety.interval.low[:, 0] <= y) & (y <= ninety.interval.high[:, 0])
    assert test["gap_ev"]["coverage_90"] == pytest.approx(inside.mean())
    own = ninety.interval.sets["wide"][np.arange(len(rows)), (table["wide"][rows] == "yes").astype(int)]
    assert test["wide"]["coverage_90"] == pytest.approx(own.mean()) and test["wide"]["temperature"] > 0


def test_the_molecule_alone_decides(calibrated):
    predictor, molecules = (
        gs.load(calibrated[0], "cpu"),
        [*calibrated[1]["smiles"][:12], "OCC", "[Na+].[Cl-]", "C[C@H](N)O"],
    )
    for bound in ("low", "high"):
        check_batch_independence(
            lambda smiles, b=bound: getattr(predictor.predict(smiles, interval=90).interval, b)[:, 0], molecules
        )
    check_batch_independence(lambda smiles: predictor.predict(smiles, nearest=True).neighbours.similarity, molecules)


def test_nearest_molecules(calibrated):
    folder, table, _ = calibrated
    predictor = gs.load(folder, "cpu")
    trained = table["smiles"][read_splits(folder)["train"]].tolist()
    asked = [trained[3], Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(trained[5]), 1, 0)[0], "oops", "[U]"]
    found = predictor.predict(asked, nearest=True)
    near = found.neighbours
    assert [Chem.CanonSmiles(text) for text in near.nearest[:2]] == [Chem.CanonSmiles(trained[i]) for i in (3, 5)]
    np.testing.assert_allclose(near.similarity[:2], 1)
    assert near.nearest[2] is None and np.isnan(near.similarity[2]) and not near.in_domain[2]
    assert near.similarity[3] < 0.3 and not near.in_domain[3] and near.in_domain[:2].all()
    assert found.interval is None
    file = Predictor(read_checkpoint(folder / BEST), "cpu")  # alone it names no structure
    row = int(file.predict(trained[3], nearest=True).neighbours.nearest[0].removeprefix("row "))
    assert table["smiles"][row - 1] == trained[3]
    text = (folder / BEST).read_bytes()
    assert not any(smiles.encode() in text for smiles in trained if len(smiles) > 12)


def test_graphs_get_intervals_too(calibrated):
    predictor = gs.load(calibrated[0], "cpu")
    smiles = calibrated[1]["smiles"][0]
    of_graph = predictor.predict([gs.smiles_to_graph(smiles)], interval=90, nearest=True)
    of_text = predictor.predict([smiles], interval=90, nearest=True)
    np.testing.assert_allclose(of_graph.interval.low, of_text.interval.low, rtol=1e-5)
    assert of_graph.neighbours.nearest == of_text.neighbours.nearest


def test_a_table(calibrated, cli, tmp_path):
    folder, table, _ = calibrated
    rows = [*table["smiles"][:5], "oops"]
    pd.DataFrame({"smiles": rows}).to_csv(tmp_path / "in.csv", index=False)
    code, _, err = cli(
        "predict", folder, tmp_path / "in.csv", "-o", tmp_path / "out.csv", "--interval", 90, "--nearest"
    )
    assert code == 0, err
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == [
        *("smiles", "gap_ev_pred", "gap_ev_low", "gap_ev_high"),
        *("size_pred", "size_prob_large", "size_prob_mid", "size_prob_small", "size_set"),
        *("wide_pred", "wide_prob_yes", "wide_set", "in_domain", "similarity", "nearest", "error"),
    ]
    expected = gs.load(folder, "cpu").predict(rows, interval=90, nearest=True)
    np.testing.assert_allclose(found["gap_ev_low"], expected.interval.low[:, 0], rtol=1e-5)
    sets = [set() if isinstance(text, float) else set(text.split("|")) for text in found["wide_set"]]
    there = expected.interval.sets["wide"]
    assert sets == [{name for name, in_set in zip(("no", "yes"), row, strict=True) if in_set} for row in there]
    assert found["nearest"][:5].tolist() == expected.neighbours.nearest[:5]
    assert found.iloc[5][["gap_ev_low", "wide_set", "in_domain", "similarity", "nearest"]].isna().all()
    frame = expected.to_frame()
    assert list(frame) == list(found)[1:] and len(frame) == len(found)
    for name, column in frame.items():
        assert column.isna().tolist() == found[name].isna().tolist(), name
        known = column.notna()
        pd.testing.assert_series_equal(column[known], found.loc[known, name], check_dtype=False, rtol=1e-4)
    assert (frame["size_pred"][:5] == expected.classes("size")[:5]).all() and frame["error"][5] == expected.errors[5]
    code, out, _ = cli("predict", folder, "CCO", "--interval", 80)
    assert code == 0 and out.splitlines()[0].endswith("wide_set,in_domain,similarity,error")
    store = tmp_path / "s.arrow"
    assert cli("featurize", tmp_path / "in.csv", "-o", store)[0] == 0
    assert cli("predict", folder, store, "-o", tmp_path / "rows.csv", "--interval", 90)[0] == 0
    np.testing.assert_allclose(pd.read_csv(tmp_path / "rows.csv")["gap_ev_high"], found["gap_ev_high"], rtol=1e-5)


def test_what_cannot_be_asked(calibrated, cli, tmp_path):
    folder, _, _ = calibrated
    for level, said in ((0.9, "level in percent"), (100, "level in percent")):
        code, _, err = cli("predict", folder, "CCO", "--interval", level)
        assert code == 2 and said in err
    old = Predictor(dataclasses.replace(read_checkpoint(folder / BEST), calibration=None), "cpu")
    for asked in ({"interval": 90}, {"nearest": True}):
        with pytest.raises(gs.InputError, match="no calibration"):
            old.predict("CCO", **asked)
    contents = torch.load(folder / BEST, weights_only=True)
    contents["calibration"]["targets"].pop()
    torch.save(contents, tmp_path / "broken.ckpt")
    with pytest.raises(gs.InputError, match="not a whole GraphSlice checkpoint"):
        gs.load(tmp_path / "broken.ckpt")


def test_a_network_that_learns_how_far_off_it_is(tiny_config, cli, tmp_path):
    """Where numbers are noise its deviation is large, and so are its intervals; it is saved, read, and inherited."""
    random = np.random.default_rng(0)
    smiles = [f"{'C' * n}{atom}{'C' * m}" for n in range(1, 15) for m in range(14) for atom in ("O", "N", "S")]
    noisy = np.array([len(text) > 14 for text in smiles])
    y = [text.count("N") + random.normal() * (3 if loud else 0.3) for text, loud in zip(smiles, noisy, strict=True)]
    wide = ["yes" if len(text) > 8 else "no" for text in smiles]
    pd.DataFrame({"smiles": smiles, "y": y, "z": 10 ** (np.array(y) / 30), "wide": wide}).to_csv(tmp_path / "t.csv")
    data = {"targets": "y,wide,z", "transform": "z=log", "split": "random"}
    settings = {"loss": "gaussian", "max_epochs": 20, "batch_size": 16}
    train(tiny_config(tmp_path / "t.csv", data=data, trainer=settings), tmp_path / "run")
    predictor = gs.load(tmp_path / "run", "cpu")
    assert predictor.config.model.tasks == 5 and predictor.predict("CCO").shape == (1, 3)
    width = predictor.predict(smiles, interval=80).interval
    for t in (0, 2):
        assert "deviation of the network" in predictor.calibration.targets[t].weights
        spans = (width.high - width.low)[:, t]
        assert spans[noisy].mean() > 1.5 * spans[~noisy].mean()
    again = tiny_config(tmp_path / "t.csv", data=data, trainer={"max_epochs": 1})
    again.init_from = str(tmp_path / "run")
    train(again, tmp_path / "again")
    assert gs.load(tmp_path / "again").config.model.tasks == 3
    assert cli("inspect", tmp_path / "run", "--smiles", "CCO", "-o", tmp_path / "seen")[0] == 0


def test_models_together(demo_rows, tiny_config, tmp_path):
    """An ensemble and folds are calibrated on molecules that each of their models did not learn."""
    demo_rows[["smiles", "gap_ev"]].to_csv(tmp_path / "t.csv", index=False)
    for name, data, trainer in (("five", {}, {"ensemble": 2}), ("folds", {"folds": "2"}, {})):
        config = tiny_config(tmp_path / "t.csv", data=data, trainer={"max_epochs": 1, **trainer})
        train(config, tmp_path / name)
        predictor = gs.load(tmp_path / name, "cpu")
        each = [read_splits(tmp_path / name / f"member-{member}") for member in (1, 2)]
        learned = set(np.concatenate([splits["train"] for splits in each]).tolist())
        assert name == "folds" or not learned & set(each[0]["test"].tolist())
        found = predictor.predict(demo_rows["smiles"].tolist(), interval=80, nearest=True)
        assert (found.interval.low[:, 0] < found.values[:, 0]).all()
        assert set(predictor.calibration.domain.rows.tolist()) == learned
        (scores,) = predictor.calibration.targets[0].scores
        assert len(scores.values) == (
            60
            if name == "folds"
            else len({row for member in (1, 2) for row in read_splits(tmp_path / name / f"member-{member}")["valid"]})
        )
        predictor.save(tmp_path / "kept")
        copies = pickle.loads(pickle.dumps(predictor)), gs.load(tmp_path / "kept", "cpu")
        for copied in (*copies, gs.load(tmp_path / "kept" / "member-1", "cpu")):
            again = copied.predict(demo_rows["smiles"].tolist(), interval=80)
            if len(copied.models) == 2:
                np.testing.assert_array_equal(again.interval.low, found.interval.low)
        nearest = [Chem.CanonSmiles(text) for text in found.neighbours.nearest]
        themselves = [Chem.CanonSmiles(text) for text in demo_rows["smiles"]]
        assert {row for row in range(60) if nearest[row] == themselves[row]} == learned
    out_of_fold = pd.read_csv(tmp_path / "folds" / "out_of_fold.csv")
    errors = np.sort(np.abs(out_of_fold["gap_ev_pred"] - demo_rows["gap_ev"]))
    weights = predictor.calibration.targets[0].weights
    if set(weights) == {"constant"}:
        np.testing.assert_allclose(scores.values, errors, rtol=1e-4)
