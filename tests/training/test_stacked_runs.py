import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from invariance import check_batch_independence
from rich.console import Console

import graphslice as gs
from graphslice.chem.graph_descriptors import graph_inputs
from graphslice.chem.molecule import MolArrays
from graphslice.runs.checkpoint import add_to_checkpoint, read_checkpoint
from graphslice.runs.run_files import read_splits
from graphslice.stacking.stacking import FITTERS, NAMES, SMALL_WEIGHT, predict_base_models
from graphslice.training import resume, train
from graphslice.training.stack import mixer_note


@pytest.fixture(scope="module")
def stacked_run(demo_rows, tiny_config, tmp_path_factory):
    """Run directory, output and table of a run on 60 molecules with a regression and a binary target."""
    folder = tmp_path_factory.mktemp("stack")
    table = demo_rows.assign(wide=np.where(demo_rows["gap_ev"] > demo_rows["gap_ev"].median(), "yes", "no"))
    table.to_csv(folder / "t.csv", index=False)
    output = io.StringIO()
    config = tiny_config(folder / "t.csv", data={"targets": "gap_ev,wide"}, trainer={"baselines": "auto"})
    train(config, folder / "run", console=Console(file=output, width=300))
    return folder / "run", output.getvalue(), table


def test_prediction_is_the_weighted_ensemble(stacked_run):
    """Predictions are the weighted sum of network and base models, also after reloading."""
    folder, _, table = stacked_run
    predictor = gs.load(folder, "cpu")
    (stacking,) = predictor.stackings
    smiles = table["smiles"].tolist()[:20]
    ensemble = predictor.predict(smiles)
    x = graph_inputs(MolArrays.from_graphs([gs.smiles_to_graph(each) for each in smiles]))
    predictor.stackings = [None]
    parts = [predictor.predict(smiles), *(predict_base_models(models, x) for models in stacking.models.values())]
    expected = sum(weights * part for weights, part in zip(stacking.weights, parts, strict=True))
    np.testing.assert_allclose(ensemble, expected, rtol=1e-5)
    np.testing.assert_allclose(stacking.weights.sum(axis=0), 1)


def test_prediction_depends_neither_on_batch_nor_on_smiles_notation(stacked_run):
    predictor = gs.load(stacked_run[0], "cpu")
    molecules = ["OCC", "c1ccccc1O", "[Na+].[Cl-]", "C[Si](C)(C)[U]", *stacked_run[2]["smiles"][:12]]
    for target in range(2):
        check_batch_independence(lambda smiles, target=target: predictor.predict(smiles)[:, target], molecules)


def test_scores_of_network_trees_and_ensemble(stacked_run):
    folder, output, table = stacked_run
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["metric"] == "loss" and set(metrics["baselines"]) == {"valid", "test"}
    for split, values in metrics["baselines"].items():
        assert set(values) == {"network", *FITTERS, "stack"}
        assert values["stack"] == pytest.approx(metrics[split]["loss"], rel=1e-5)
    rows = read_splits(folder)["test"]
    predictions = gs.load(folder, "cpu").predict(table["smiles"][rows])[:, 0]
    assert metrics["test"]["targets"]["gap_ev"]["mae"] == pytest.approx(
        np.abs(predictions - table["gap_ev"][rows]).mean(), rel=1e-5
    )
    assert "to 47 training molecules" in output
    assert "(weights chosen on held-out molecules, mean over 2 targets)" in output
    for name, value in metrics["baselines"]["test"].items():
        assert f"{NAMES[name]} {value:.4f}" in output


def test_run_says_that_its_scores_show_little_of_a_chosen_mixer(stacked_run):
    assert read_checkpoint(stacked_run[0]).stacking.weights[0].mean() < SMALL_WEIGHT
    assert "the scores are mostly those of the base models: trainer.baselines off, or" in stacked_run[1]
    assert mixer_note("csp", SMALL_WEIGHT) == [] != mixer_note("csp", SMALL_WEIGHT - 0.001)
    assert mixer_note(gs.RunConfig.preset("small").model.mixer, 0.0) == []


def test_predict_csv_and_preprocessed_dataset(stacked_run, cli, tmp_path):
    folder, _, table = stacked_run
    table[["smiles"]].head(3).to_csv(tmp_path / "in.csv", index=False)
    assert cli("predict", folder, tmp_path / "in.csv", "-o", tmp_path / "out.csv")[0] == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == ["smiles", "gap_ev_pred", "wide_pred", "wide_prob_yes", "error"]
    assert cli("featurize", tmp_path / "in.csv", "-o", tmp_path / "s.arrow", "--features", "rdkit2d")[0] == 0
    assert cli("predict", folder, tmp_path / "s.arrow", "-o", tmp_path / "rows.csv")[0] == 0
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert rows["smiles"].tolist() == found["smiles"].tolist()
    np.testing.assert_allclose(rows["gap_ev_pred"], found["gap_ev_pred"], rtol=1e-5)


def test_evaluating_again_changes_nothing(stacked_run, tmp_path):
    """Weights are chosen without the stack and the calibration that the checkpoint already has."""
    shutil.copytree(stacked_run[0], tmp_path / "run")
    set_temperature(tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "metrics.json").unlink()
    resume(tmp_path / "run")
    before, after = (read_checkpoint(folder) for folder in (stacked_run[0], tmp_path / "run"))
    np.testing.assert_array_equal(after.stacking.weights, before.stacking.weights)
    assert (tmp_path / "run" / "metrics.json").read_text() == (stacked_run[0] / "metrics.json").read_text()


def set_temperature(path) -> None:
    """Give a calibrated checkpoint another temperature."""
    calibration = read_checkpoint(path).calibration
    targets = tuple(replace(one, temperature=9.0) for one in calibration.targets)
    add_to_checkpoint(path, replace(calibration, targets=targets))
