"""Runs on atom- and bond-level targets that RDKit computes."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from rdkit.Chem import AllChem

import graphslice as gs
from graphslice.report.write import write_report
from graphslice.runs.run_files import read_splits
from graphslice.training import train


def charges(smiles: str) -> list[float]:
    mol = Chem.MolFromSmiles(smiles)
    AllChem.ComputeGasteigerCharges(mol)
    return [float(atom.GetProp("_GasteigerCharge")) for atom in mol.GetAtoms()]


def bonds(smiles: str, what: str) -> list[float]:
    return [float(getattr(bond, what)()) for bond in Chem.MolFromSmiles(smiles).GetBonds()]


@pytest.fixture(scope="module")
def table(demo_smiles, tmp_path_factory) -> str:
    """200 molecules, followed by rows with all kinds of errors."""
    smiles = [*demo_smiles[:200], "CCO", "CCO", "C[N", "CCO"]
    good = smiles[:200]
    frame = pd.DataFrame(
        {
            "smiles": smiles,
            "charge": [*(json.dumps(charges(s)) for s in good), "[0.1, 0.2]", "", "[1]", "0.5"],
            "order": [*(json.dumps(bonds(s, "GetBondTypeAsDouble")) for s in good), "[1]", "", "[1]", "x"],
            "ring": [*(json.dumps(bonds(s, "IsInRing")) for s in good), "[1]", "", "[1]", "x"],
        }
    )
    path = tmp_path_factory.mktemp("charges") / "table.csv"
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def config_of(tiny_config):
    def make(table: str, level: str, targets: str, **trainer):
        data = {"targets": targets, "level": level}
        model = {"mixer": "slice-quantile", "dim": 32, "heads": 4, "ffn_dim": 32, "layers": 2, "dropout": 0.0}
        model |= {"init": "balanced"}
        settings = {"max_epochs": 20, **trainer}
        return tiny_config(table, data=data, model=model, trainer=settings, optimizer={"peak_lr": 4e-3})

    return make


@pytest.fixture(scope="module")
def runs(table, config_of, tmp_path_factory):
    """Finished runs by level."""
    folder = tmp_path_factory.mktemp("runs")
    for level, targets in (("atom", "charge"), ("bond", "order,ring")):
        train(config_of(table, level, targets), folder / level)
    return folder


def test_atom_charges_are_predicted(runs, table):
    metrics = json.loads((runs / "atom" / "metrics.json").read_text())["test"]
    labels = np.concatenate([charges(s) for s in pd.read_csv(table).smiles[:200]])
    assert metrics["mae"] < 0.25 * np.abs(labels - np.median(labels)).mean()
    assert metrics["molecules"] == 20 and metrics["atoms"] == metrics["targets"]["charge"]["atoms"] > 100
    model = gs.load(runs / "atom")
    found = model.predict(["CC(=O)[O-].[Na+]", "c1ccccc1"])
    rejected = pd.read_csv(runs / "atom" / "rejected.csv")
    assert list(rejected.row) == [201, 202, 203, 204]
    assert list(rejected.reason[:2]) == ["target 'charge' has 2 numbers for 3 atoms", "no target value"]
    assert [one.shape for one in found] == [(5, 1), (6, 1)] and np.ptp(found[1]) < 1e-5
    scores = model.evaluate(pd.DataFrame({"smiles": ["CCO", "CC"], "charge": ["[0.1, null, 0]", "[null, 0.3]"]}))
    assert scores["atoms"] == scores["targets"]["charge"]["atoms"] == 3 and scores["molecules"] == 2
    assert found[0][2, 0] < found[0][0, 0] < found[0][1, 0]  # oxygen, methyl, carboxyl


def test_bond_targets_are_predicted(runs):
    metrics = json.loads((runs / "bond" / "metrics.json").read_text())["test"]
    assert metrics["targets"]["order"]["r2"] > 0.7 and metrics["targets"]["ring"]["auroc"] > 0.95
    (found,) = gs.load(runs / "bond").predict(["CC(=O)c1ccccc1"])
    assert found[1, 0] == found[:, 0].max() > 1.6 and found[[0, 2], 0].max() < 1.25 < found[3:, 0].min()
    assert found[:3, 1].max() < 0.5 < found[3:, 1].min()  # the probability of a ring


def test_commands_with_atom_and_bond_level_models(runs, cli):
    code, out, _ = cli("evaluate", runs / "atom", "-o", runs / "evaluated.csv")
    written, trained = (pd.read_csv(runs / name) for name in ("evaluated.csv", "atom/test_predictions.csv"))
    assert written["row"].tolist() == trained["row"].tolist() and list(written) == list(trained)
    for name in written.filter(regex="_(true|pred|low|high)$"):
        for one, other in zip(written[name], trained[name], strict=True):
            np.testing.assert_allclose(json.loads(one), json.loads(other), rtol=1e-3, atol=1e-5)
    assert code == 0 and "atoms of 20 molecules" in out
    code, out, _ = cli("predict", runs / "atom", "CCO")
    assert code == 0 and len(json.loads(out.splitlines()[1].split('"')[1])) == 3
    text = write_report(runs / "bond").read_text()
    assert "the targets are bond-level" in text and "of a molecule&#39;s bonds covered, and mean width" in text


EDGE_CASES = ["C", "[Na+].[Cl-]", "OCC", "O"]


@pytest.fixture(scope="module")
def small(demo_smiles, tmp_path_factory) -> pd.DataFrame:
    """40 molecules, some with a single atom and no bonds, and with missing labels."""
    frame = pd.DataFrame({"smiles": [*demo_smiles[:40], *EDGE_CASES]})
    known = [json.dumps(charges(s)) for s in demo_smiles[:40]]
    frame["charge"] = [*known, "[-0.1]", "[1, -1]", "[null, 0.1, 0]", "[nan]"]
    frame["order"] = [json.dumps(bonds(s, "GetBondTypeAsDouble")) for s in frame.smiles]
    frame["ring"] = [json.dumps(bonds(s, "IsInRing")) for s in frame.smiles]
    frame["split"] = np.resize(["train", "valid", "train", "test"], len(frame))
    frame["path"] = str(tmp_path_factory.mktemp("small") / "t.csv")
    frame.to_csv(frame["path"][0], index=False)
    return frame


@pytest.fixture(scope="module")
def ensemble_runs(small, config_of, without_child_processes, tmp_path_factory):
    """An ensemble of two bond-level models, and two-fold cross-validation of an atom-level model."""
    folder, made = tmp_path_factory.mktemp("several"), {}
    made["ensemble"] = config_of(small["path"][0], "bond", "order,ring", max_epochs=1, ensemble=2)
    made["folds"] = config_of(small["path"][0], "atom", "charge", max_epochs=1)
    for name, settings in (("ensemble", {"split": "split"}), ("folds", {"folds": "2", "split": "random"})):
        config = dataclasses.replace(made[name], data=dataclasses.replace(made[name].data, **settings))
        with without_child_processes():
            train(config, folder / name)
    return folder


def test_too_few_molecules_give_unbounded_intervals(ensemble_runs, cli, tmp_path):
    """The validation set has ten molecules, however many bonds they have: enough for 90%, too few for 95%."""
    model = gs.load(ensemble_runs / "ensemble", "cpu")
    for level, ends in ((90, np.isfinite), (95, np.isinf)):
        found = model.predict(["CCO", "C", "c1ccccc1"], interval=level).interval
        assert len(found.low) == 8 and (found.low[:, 0] >= 0).all() and ends(found.high[:, 0]).all()
    assert found.sets["ring"].all()
    arguments = ["predict", ensemble_runs / "ensemble", "CCO", "C", "--interval", 95, "--nearest"]
    assert cli(*arguments, "-o", tmp_path / "o.csv")[0] == 0
    table = pd.read_csv(tmp_path / "o.csv", dtype={"nearest": str})
    assert table.order_high[0] == "[null, null]" and json.loads(table.order_high[1]) == []
    assert json.loads(table.ring_sure[0]) == [False, False] and json.loads(table.order_low[0]) == [0, 0]
    assert table.nearest.notna().all() and table.similarity[0] > 0  # of the molecules


def test_out_of_fold_predictions(ensemble_runs, small):
    """Each molecule is predicted by the model that held it out, as lists in the order of the SMILES."""
    found = pd.read_csv(ensemble_runs / "folds" / "out_of_fold.csv")
    assert list(found) == ["row", "smiles", "charge_true", "charge_pred"]
    assert list(found.row) == list(range(1, 44))  # one has no label
    for true, cell in zip(found.charge_true, small.charge, strict=False):
        np.testing.assert_array_equal(np.array(json.loads(true), float), np.array(json.loads(cell), float))
    errors = []
    for number in (1, 2):
        rows = read_splits(ensemble_runs / "folds" / f"member-{number}")["test"]
        predictions = gs.load(ensemble_runs / "folds" / f"member-{number}", "cpu").predict(small.smiles[rows].tolist())
        for row, values in zip(rows.tolist(), predictions, strict=True):
            cell = json.loads(found.charge_pred[row])
            np.testing.assert_allclose(cell, values[:, 0], rtol=1e-4, atol=1e-6)
            labels = np.array(json.loads(small.charge[row]), float)
            errors.append(np.abs(labels - cell)[~np.isnan(labels)])
    model = gs.load(ensemble_runs / "folds", "cpu")
    assert model.metrics["test"]["mae"] == pytest.approx(np.concatenate(errors).mean(), rel=1e-3)
    (scores,) = model.calibration.targets[0].scores
    if set(model.calibration.targets[0].weights) == {"constant"}:
        np.testing.assert_allclose(scores.values, np.sort(np.concatenate(errors)), rtol=1e-3, atol=1e-6)
    assert (1 / scores.counts).sum() == pytest.approx(43)
