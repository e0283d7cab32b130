"""Atom- and bond-level predictions: in SMILES order, independent of the batch and of how the SMILES is written."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

import graphslice as gs
from graphslice.calibration import ApplicabilityDomain, Calibration, NonconformityScores, TargetCalibration
from graphslice.calibration.domain import DOMAIN_BITS
from graphslice.data.featurize import fingerprint_rows
from graphslice.data.preprocess import featurize_dataset
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import evaluate, load_evaluation_data
from graphslice.explain.attribution import attribute
from graphslice.inference import Predictor
from graphslice.inference.files import predict_file
from graphslice.inference.predictions import PredictionInterval
from graphslice.runs.checkpoint import Checkpoint
from graphslice.tasks import Task

MOLECULES = [
    "CCO", "c1ccccc1O", "[Na+].[Cl-].OCC", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "[2H]OCC",
    "N->[Pt](Cl)(Cl)<-N", "C1CC2CCC1CC2", "O=C([O-])c1ccccc1.[K+]", "CCCCCCCCCCCCCCCC",
    "NNC(=O)[C@H]1[C@@H](C(=O)NN)[C@H]1C(=O)NN",
]  # fmt: skip
LEVELS = ["atom", "bond"]


@pytest.fixture(scope="module")
def predictors(make_predictor):
    """Untrained predictors by level, with weights large enough for atoms to differ."""
    return {level: make_predictor(8.0, level=level, layers=2) for level in LEVELS}


def random_smiles(smiles: str, seed: int) -> tuple[str, list[int]]:
    """Rewrite a SMILES; returns it with the original index of each of its atoms."""
    mol = Chem.MolFromSmiles(smiles)
    order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
    renumbered = Chem.RenumberAtoms(mol, order)
    rewritten = Chem.MolToSmiles(renumbered, canonical=False)
    output_order = json.loads(renumbered.GetProp("_smilesAtomOutputOrder").replace(",]", "]"))
    return rewritten, [order[i] for i in output_order]


def reorder(values: np.ndarray, level: str, smiles: str, rewritten: str, atoms: list[int]) -> np.ndarray:
    """Bring the values of atoms or bonds of a SMILES into the order of the rewritten SMILES."""
    if level == "atom":
        return values[atoms]
    mol, other = Chem.MolFromSmiles(smiles), Chem.MolFromSmiles(rewritten)
    ends = [(atoms[b.GetBeginAtomIdx()], atoms[b.GetEndAtomIdx()]) for b in other.GetBonds()]
    return values[np.array([mol.GetBondBetweenAtoms(a, b).GetIdx() for a, b in ends], int)]


@pytest.mark.parametrize("level", LEVELS)
def test_predictions_do_not_depend_on_batch_or_notation(level, predictors, demo_smiles):
    model, molecules = predictors[level], MOLECULES + demo_smiles[:12]
    in_batch = model.predict(molecules)
    std = np.concatenate(in_batch).std()
    for smiles, values in zip(molecules, in_batch, strict=True):
        mol = Chem.MolFromSmiles(smiles)
        assert values.shape == (mol.GetNumAtoms() if level == "atom" else mol.GetNumBonds(), 1)
        np.testing.assert_allclose(model.predict([smiles])[0], values, atol=1e-5 * std)
    changed = 0
    for seed in (1, 2, 3):
        rewritten = [random_smiles(smiles, seed) for smiles in molecules]
        predictions = model.predict([other for other, _ in rewritten])
        for smiles, (other, atoms), before, after in zip(molecules, rewritten, in_batch, predictions, strict=True):
            expected = reorder(before, level, smiles, other, atoms)
            np.testing.assert_allclose(after, expected, atol=1e-5 * std)
            changed += before.shape == after.shape and np.abs(before - after).max(initial=0) > 0.1 * std
    assert changed > len(molecules)  # otherwise the test would not depend on the order


@pytest.mark.parametrize("level", LEVELS)
def test_predictions_of_a_graph_are_in_its_order(level, predictors):
    """A graph in input order has the order of its SMILES."""
    smiles = "OCC(=O)N"
    graph = gs.smiles_to_graph(smiles, atom_order="input")
    for one in (graph, graph.to_pyg()):
        values, expected = predictors[level].predict([one, smiles])
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_invalid_molecules_have_no_rows_but_an_error(predictors):
    model = predictors["bond"]
    result = model.predict(["CCO", "oops", "C", "", None, "CC"], details=True)
    assert [bool(error) for error in result.errors] == [False, True, False, True, True, False]
    assert [len(row) for row in result.by_row] == [2, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(result.values, np.concatenate(model.predict(["CCO", "CC"])))
    frame = result.to_frame()
    assert list(frame.columns) == ["y_pred", "error"]
    assert [None if cell is None else len(cell) for cell in frame.y_pred] == [2, None, 0, None, None, 1]


def test_inputs_without_smiles_order_are_rejected(predictors):
    model = predictors["atom"]
    mol = Chem.MolFromSmiles("CCO")
    for molecules in (mol, [mol], pd.DataFrame({"smiles": [mol]})):
        with pytest.raises(InputError, match="these are RDKit molecules"):
            model.predict(molecules)
    for options in ({"interval": 90}, {"nearest": True}):
        with pytest.raises(InputError, match="the model has no calibration"):
            model.predict("CCO", **options)
    with pytest.raises(InputError, match="atom contributions require"):
        attribute(model, "CCO")


def test_atoms_of_a_preprocessed_dataset_are_predicted_in_the_order_of_the_smiles(predictors, tmp_path, demo_csv):
    model = predictors["atom"]
    featurize_dataset(gs.config.DataConfig(dataset=str(demo_csv)), model.config.graph, tmp_path / "s.arrow")
    predict_file(model, tmp_path / "s.arrow", tmp_path / "out.parquet")
    predict_file(model, demo_csv, tmp_path / "table.parquet")
    one, two = (pd.read_parquet(tmp_path / name) for name in ("out.parquet", "table.parquet"))
    (name,) = (column for column in one if column.endswith("_pred"))
    assert one[name].map(list).tolist() == two[name].map(list).tolist() and one.smiles.tolist() == two.smiles.tolist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_hold_lists(suffix, predictors, tmp_path):
    model, smiles = predictors["atom"], [*MOLECULES, "C[N"]
    pd.DataFrame({"smiles": smiles, "n": range(len(smiles))}).to_csv(tmp_path / "in.csv", index=False)
    out = tmp_path / f"out{suffix}"
    report = predict_file(model, tmp_path / "in.csv", out)
    assert (report.rows, report.failed) == (len(smiles), 1)
    expected = model.predict(smiles)
    if suffix == ".parquet":
        table = pq.read_table(out)
        cells, errors = table.column("y_pred").to_pylist(), table.column("error").to_pylist()
    else:
        table = pd.read_csv(out, keep_default_na=False)
        cells, errors = [json.loads(cell or "null") for cell in table["y_pred"]], list(table["error"])
    assert cells[-1] is None and errors[-1] == "not a valid SMILES: syntax error at character 3"
    for cell, values in zip(cells[:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(np.array(cell, np.float32), values[:, 0], rtol=1e-6, atol=1e-6)


def test_frame_of_classes_and_ensembles_holds_lists(make_predictor, tmp_path):
    checkpoints = []
    for scale in (8.0, 9.0):
        (checkpoint,) = make_predictor(scale, ("a", "b", "c"), level="atom").checkpoints
        tasks = [Task("k", "binary", ("no", "yes")), Task("q"), Task("r")]
        checkpoints.append(Checkpoint(checkpoint.config, tasks, checkpoint.weights))
    model = Predictor(checkpoints, "cpu")
    members = [Predictor(checkpoint, "cpu").predict(["CCO"])[0] for checkpoint in checkpoints]
    frame = model.predict(["CCO", "C"], details=True).to_frame()
    assert [*frame] == ["k_pred", "k_prob_yes", "k_prob_yes_std", "q_pred", "q_std", "r_pred", "r_std", "error"]
    assert [len(cell) for cell in frame.k_pred] == [3, 1] and set(frame.k_pred[0]) <= {"no", "yes"}
    np.testing.assert_allclose(frame.q_pred[0], np.mean(members, axis=0)[:, 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frame.q_std[0], np.std(members, axis=0, ddof=1)[:, 1], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def calibrated_predictors(make_predictor):
    """By level: a regression and a binary target, calibrated on 30 molecules; errors grow with distance to phenol."""
    predictors = {}
    for level in LEVELS:
        (checkpoint,) = make_predictor(8.0, ("a", "b"), level=level, layers=2).checkpoints
        random, molecules = np.random.default_rng(0), np.repeat(np.arange(30), 3)
        scores = [NonconformityScores.from_rows(random.random(90), molecules) for _ in range(3)]
        regression = TargetCalibration((scores[0],), {"constant": 1.0, "distance": 2.0})
        binary = TargetCalibration(tuple(scores[1:]), {"constant": 1.0}, 1.5)
        store = Predictor(checkpoint, "cpu").featurize_molecules(["c1ccccc1O"])
        domain = ApplicabilityDomain.from_fingerprints(
            fingerprint_rows(store, np.arange(1), DOMAIN_BITS), np.arange(1), 0
        )
        tasks = [Task("q"), Task("k", "binary", ("no", "yes"))]
        calibration = Calibration((regression, binary), domain)
        calibrated = Checkpoint(checkpoint.config, tasks, checkpoint.weights, calibration=calibration)
        predictors[level] = Predictor(calibrated, "cpu")
    return predictors


@pytest.mark.parametrize("level", LEVELS)
def test_intervals_are_in_the_order_of_the_smiles(level, calibrated_predictors):
    """Intervals are centred on the predictions, widen with distance, and do not depend on batch or notation."""
    model, molecules = calibrated_predictors[level], ["oops", *MOLECULES]
    predictions = model.predict(molecules, interval=80, nearest=True)
    neighbours, interval, values = predictions.neighbours, predictions.interval, predictions.values
    similarity = neighbours.similarity
    assert len(similarity) == len(molecules) and np.isnan(similarity[0]) and neighbours.nearest[:2] == [None, "row 1"]
    half_width = model.calibration.targets[0].scores[0].quantile(0.8) * (1 + 2 * (1 - similarity))
    half_width = np.repeat(half_width, np.diff(predictions.ptr))
    np.testing.assert_allclose(interval.low[:, 0], values[:, 0] - half_width, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(interval.high[:, 0], values[:, 0] + half_width, rtol=1e-4, atol=1e-5)
    assert np.isnan(interval.low[:, 1]).all()
    thresholds = [scores.quantile(0.8) for scores in model.calibration.targets[1].scores]
    nonconformity = np.stack([values[:, 1], 1 - values[:, 1]], axis=1)
    differs = interval.sets["k"] != (nonconformity <= thresholds)
    assert not (differs & (np.abs(nonconformity - thresholds) > 1e-4)).any()
    for row, smiles in enumerate(molecules[1:], 1):
        rewritten, atoms = random_smiles(smiles, row)
        again = model.predict(rewritten, interval=80).interval
        low = interval.low[predictions.ptr[row] : predictions.ptr[row + 1], :1]
        expected = reorder(low, level, smiles, rewritten, atoms)
        np.testing.assert_allclose(again.low[:, :1], expected, rtol=1e-4, atol=1e-4)


def test_intervals_of_equivalent_atoms_are_averaged():
    """Bounds are averaged and stay infinite if one is; prediction sets are united."""
    low, sets = np.array([[1.0], [-np.inf], [3], [5]], np.float32), np.array([[1, 0], [0, 0], [0, 1], [0, 0]], bool)
    averaged = PredictionInterval(90, low, low + 1, {"k": sets}).average_groups(np.array([0, 1, 0, 1]))
    assert averaged.low[:, 0].tolist() == [2, -np.inf, 2, -np.inf]
    assert averaged.high[:, 0].tolist() == [3, -np.inf, 3, -np.inf]
    assert averaged.sets["k"].tolist() == [[True, True], [False, False]] * 2


def test_scores_count_all_atoms(predictors, tmp_path):
    """Labels differ from predictions by a known error; rows of the wrong length are left out with a message."""
    model = predictors["atom"]
    predictions = [values[:, 0].astype(float) for values in model.predict(MOLECULES)]
    cells = [json.dumps((values + 0.5).tolist()) for values in predictions] + ["[1, 2]", "[1]"]
    table = pd.DataFrame({"smiles": [*MOLECULES, "CCO", "oops"], "y": cells})
    table.to_csv(tmp_path / "t.csv", index=False)
    dataset, splits = load_evaluation_data(model, None, {"dataset": str(tmp_path / "t.csv")})
    scores = evaluate(model, dataset, "all", splits)
    assert scores["mae"] == pytest.approx(0.5, rel=1e-4)
    assert scores["atoms"] == sum(map(len, predictions)) and scores["molecules"] == len(MOLECULES)
    assert scores["unanswered"] == 1 and scores["targets"]["y"]["atoms"] == scores["atoms"]
    assert dataset.unreadable() == {len(MOLECULES): "target 'y' has 2 numbers for 3 atoms"}
