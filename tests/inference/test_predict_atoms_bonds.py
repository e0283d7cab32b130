"""Answers for atoms and bonds: in the order of the SMILES, whatever the spelling and the batch."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from rdkit import Chem

import graphslice as gs
from graphslice.analysis import attribute
from graphslice.calibration import ApplicabilityDomain, Calibration, NonconformityScores, TargetCalibration
from graphslice.calibration.applicability_domain import DOMAIN_BITS
from graphslice.checkpoint import Checkpoint
from graphslice.data.featurize import featurize_dataset
from graphslice.data.molecule_keys import fingerprint_rows
from graphslice.errors import InputError
from graphslice.evaluation.evaluate import evaluate, load_evaluation_data
from graphslice.inference import Predictor
from graphslice.inference.embedding import compute_embeddings
from graphslice.inference.files import predict_file
from graphslice.inference.predictions import PredictionInterval
from graphslice.tasks import Task

MOLECULES = [
    "CCO", "c1ccccc1O", "[Na+].[Cl-].OCC", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "[2H]OCC",
    "N->[Pt](Cl)(Cl)<-N", "C1CC2CCC1CC2", "O=C([O-])c1ccccc1.[K+]", "CCCCCCCCCCCCCCCC",
    "NNC(=O)[C@H]1[C@@H](C(=O)NN)[C@H]1C(=O)NN",
]  # fmt: skip
LEVELS = ["atom", "bond"]


@pytest.fixture(scope="module")
def predictors(make_predictor):
    """By level; untrained, with weights that make atoms differ."""
    return {level: make_predictor(8.0, level=level, layers=2) for level in LEVELS}


def random_smiles(smiles: str, seed: int) -> tuple[str, list[int]]:
    """Another spelling, and for each of its atoms which of the first one it is."""
    mol = Chem.MolFromSmiles(smiles)
    order = np.random.default_rng(seed).permutation(mol.GetNumAtoms()).tolist()
    other = Chem.RenumberAtoms(mol, order)
    text = Chem.MolToSmiles(other, canonical=False)
    written = json.loads(other.GetProp("_smilesAtomOutputOrder").replace(",]", "]"))
    return text, [order[i] for i in written]


def in_other_order(values: np.ndarray, level: str, smiles: str, text: str, atoms: list[int]) -> np.ndarray:
    if level == "atom":
        return values[atoms]
    mol, other = Chem.MolFromSmiles(smiles), Chem.MolFromSmiles(text)
    ends = [(atoms[b.GetBeginAtomIdx()], atoms[b.GetEndAtomIdx()]) for b in other.GetBonds()]
    return values[np.array([mol.GetBondBetweenAtoms(a, b).GetIdx() for a, b in ends], int)]


@pytest.mark.parametrize("level", LEVELS)
def test_neither_the_batch_nor_the_spelling_matters(level, predictors, demo_smiles):
    model, molecules = predictors[level], MOLECULES + demo_smiles[:12]
    together = model.predict(molecules)
    spread = np.concatenate(together).std()
    for smiles, found in zip(molecules, together, strict=True):
        mol = Chem.MolFromSmiles(smiles)
        assert found.shape == (mol.GetNumAtoms() if level == "atom" else mol.GetNumBonds(), 1)
        np.testing.assert_allclose(model.predict([smiles])[0], found, atol=1e-5 * spread)
    moved = 0
    for seed in (1, 2, 3):
        spelled = [random_smiles(smiles, seed) for smiles in molecules]
        answers = model.predict([text for text, _ in spelled])
        for smiles, (text, atoms), before, after in zip(molecules, spelled, together, answers, strict=True):
            expected = in_other_order(before, level, smiles, text, atoms)
            np.testing.assert_allclose(after, expected, atol=1e-5 * spread)
            moved += before.shape == after.shape and np.abs(before - after).max(initial=0) > 0.1 * spread
    assert moved > len(molecules)  # or their order would not matter


@pytest.mark.parametrize("level", LEVELS)
def test_a_graph_keeps_its_order(level, predictors):
    """Against the same molecule as a SMILES, through what RDKit says of its atoms."""
    text = "OCC(=O)N"
    graph = gs.smiles_to_graph(text, atom_order="input")
    for one in (graph, graph.to_pyg()):
        found, expected = predictors[level].predict([one, text])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_rows_without_a_molecule_have_reasons(predictors):
    model = predictors["bond"]
    result = model.predict(["CCO", "oops", "C", "", None, "CC"], details=True)
    assert [bool(error) for error in result.errors] == [False, True, False, True, True, False]
    assert [len(row) for row in result.by_row] == [2, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(result.values, np.concatenate(model.predict(["CCO", "CC"])))
    frame = result.to_frame()
    assert list(frame.columns) == ["y_pred", "error"]
    assert [None if cell is None else len(cell) for cell in frame.y_pred] == [2, None, 0, None, None, 1]


def test_what_has_no_order_or_no_meaning_is_refused(predictors, tmp_path, demo_csv):
    model = predictors["atom"]
    mol = Chem.MolFromSmiles("CCO")
    for given in (mol, [mol], pd.DataFrame({"smiles": [mol]})):
        with pytest.raises(InputError, match="these are RDKit molecules"):
            model.predict(given)
    for asked in ({"interval": 90}, {"nearest": True}):
        with pytest.raises(InputError, match="the model has no calibration"):
            model.predict("CCO", **asked)
    with pytest.raises(InputError, match="atom contributions require"):
        attribute(model, "CCO")
    featurize_dataset(gs.config.DataConfig(dataset=str(demo_csv)), model.config.graph, tmp_path / "s.arrow")
    with pytest.raises(InputError, match="keeps no SMILES"):
        predict_file(model, tmp_path / "s.arrow", tmp_path / "out.csv")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_files(suffix, predictors, tmp_path):
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
        table = pd.read_csv(out, sep="\t" if suffix == ".tsv" else ",", keep_default_na=False)
        cells, errors = [json.loads(cell or "null") for cell in table["y_pred"]], list(table["error"])
    assert cells[-1] is None and errors[-1] == "not a valid SMILES"
    for cell, values in zip(cells[:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(np.array(cell, np.float32), values[:, 0], rtol=1e-6, atol=1e-6)


def test_classes_and_several_models(make_predictor, tmp_path):
    """The columns of a table with a row for each atom, as lists."""
    parts = []
    for scale in (8.0, 9.0):
        (part,) = make_predictor(scale, ("a", "b", "c"), level="atom").checkpoints
        tasks = [Task("k", "binary", ("no", "yes")), Task("q"), Task("r")]
        parts.append(Checkpoint(part.config, tasks, part.weights))
    model = Predictor(parts, "cpu")
    each = [Predictor(part, "cpu").predict(["CCO"])[0] for part in parts]
    frame = model.predict(["CCO", "C"], details=True).to_frame()
    assert list(frame.columns) == [
        "k_pred",
        "k_prob_yes",
        "k_prob_yes_std",
        "q_pred",
        "q_std",
        "r_pred",
        "r_std",
        "error",
    ]
    assert [len(cell) for cell in frame.k_pred] == [3, 1] and set(frame.k_pred[0]) <= {"no", "yes"}
    np.testing.assert_allclose(frame.q_pred[0], np.mean(each, axis=0)[:, 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frame.q_std[0], np.std(each, axis=0, ddof=1)[:, 1], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def calibrated_predictors(make_predictor):
    """By level: a number and yes or no, calibrated on 30 molecules, which are harder far from phenol."""
    found = {}
    for level in LEVELS:
        (part,) = make_predictor(8.0, ("a", "b"), level=level, layers=2).checkpoints
        random, of = np.random.default_rng(0), np.repeat(np.arange(30), 3)
        scores = [NonconformityScores.from_rows(random.random(90), of) for _ in range(3)]
        number = TargetCalibration((scores[0],), {"constant": 1.0, "distance": 2.0})
        classes = TargetCalibration(tuple(scores[1:]), {"constant": 1.0}, 1.5)
        store = Predictor(part, "cpu").featurize_molecules(["c1ccccc1O"])
        domain = ApplicabilityDomain.from_fingerprints(
            fingerprint_rows(store, np.arange(1), DOMAIN_BITS), np.arange(1), 0
        )
        tasks = [Task("q"), Task("k", "binary", ("no", "yes"))]
        made = Checkpoint(part.config, tasks, part.weights, calibration=Calibration((number, classes), domain))
        found[level] = Predictor(made, "cpu")
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_intervals_in_the_order_of_the_smiles(level, calibrated_predictors):
    """As wide as the molecule is far, around the answers, whatever the spelling and the batch."""
    model, molecules = calibrated_predictors[level], ["oops", *MOLECULES]
    found = model.predict(molecules, interval=80, nearest=True)
    near, values = found.neighbours.similarity, found.values
    assert len(near) == len(molecules) and np.isnan(near[0]) and found.neighbours.nearest[:2] == [None, "row 1"]
    half = model.calibration.targets[0].scores[0].quantile(0.8) * (1 + 2 * (1 - near))
    half = np.repeat(half, np.diff(found.ptr))
    np.testing.assert_allclose(found.interval.low[:, 0], values[:, 0] - half, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.interval.high[:, 0], values[:, 0] + half, rtol=1e-4, atol=1e-5)
    assert np.isnan(found.interval.low[:, 1]).all()
    borders = [scores.quantile(0.8) for scores in model.calibration.targets[1].scores]
    lacking = np.stack([values[:, 1], 1 - values[:, 1]], axis=1)
    differs = found.interval.sets["k"] != (lacking <= borders)
    assert not (differs & (np.abs(lacking - borders) > 1e-4)).any()
    for place, smiles in enumerate(molecules[1:], 1):
        text, atoms = random_smiles(smiles, place)
        again = model.predict(text, interval=80).interval
        low = found.interval.low[found.ptr[place] : found.ptr[place + 1], :1]
        np.testing.assert_allclose(
            again.low[:, :1], in_other_order(low, level, smiles, text, atoms), rtol=1e-4, atol=1e-4
        )


def test_bounds_of_what_is_alike():
    """Means of bounds, without end where one has none; every class that one of them may have."""
    low, sets = np.array([[1.0], [-np.inf], [3], [5]], np.float32), np.array([[1, 0], [0, 0], [0, 1], [0, 0]], bool)
    found = PredictionInterval(90, low, low + 1, {"k": sets}).average_groups(np.array([0, 1, 0, 1]))
    assert found.low[:, 0].tolist() == [2, -np.inf, 2, -np.inf] and found.high[:, 0].tolist() == [
        3,
        -np.inf,
        3,
        -np.inf,
    ]
    assert found.sets["k"].tolist() == [[True, True], [False, False]] * 2


def test_files_with_intervals(calibrated_predictors, tmp_path):
    model = calibrated_predictors["bond"]
    pd.DataFrame({"smiles": ["CCO", "C", "oops"]}).to_csv(tmp_path / "in.csv", index=False)
    report = predict_file(model, tmp_path / "in.csv", tmp_path / "out.parquet", interval=80)
    table = pq.read_table(tmp_path / "out.parquet")
    expected = model.predict(["CCO", "C", "oops"], interval=80).to_frame()
    assert report.failed == 1 and table.column_names == ["smiles", *expected]
    assert [one for one in table.column_names if one.startswith("q")] == ["q_pred", "q_low", "q_high"]
    cells = table.to_pydict()
    for name in ("q_low", "q_high", "k_set"):
        assert [None if cell is None else len(cell) for cell in cells[name]] == [2, 0, None]
        assert cells[name][0] == list(expected[name][0])
    assert cells["in_domain"] == [True, True, None] and np.isnan(cells["similarity"][2])  # of molecules


def test_embeddings_are_of_molecules(predictors):
    model = predictors["bond"]
    found = compute_embeddings(model, model.featurize_molecules(["CCO", "oops", "OCC"]))
    assert found.shape == (3, 16) and np.isnan(found[1]).all()
    np.testing.assert_allclose(found[0], found[2], rtol=1e-4, atol=1e-5)


def test_scores_are_of_all_atoms(predictors, tmp_path):
    """Labels that are the answers but for a known error; a row of another length is left out, and told."""
    model = predictors["atom"]
    answers = [values[:, 0].astype(float) for values in model.predict(MOLECULES)]
    cells = [json.dumps((values + 0.5).tolist()) for values in answers] + ["[1, 2]", "[1]"]
    table = pd.DataFrame({"smiles": [*MOLECULES, "CCO", "oops"], "y": cells})
    table.to_csv(tmp_path / "t.csv", index=False)
    source, splits = load_evaluation_data(model, None, {"dataset": str(tmp_path / "t.csv")})
    found = evaluate(model, source, "all", splits)
    assert found["mae"] == pytest.approx(0.5, rel=1e-4)
    assert found["atoms"] == sum(map(len, answers)) and found["molecules"] == len(MOLECULES)
    assert found["unanswered"] == 1 and found["targets"]["y"]["atoms"] == found["atoms"]
    assert source.unreadable() == {len(MOLECULES): "target 'y' has 2 numbers for 3 atoms"}
