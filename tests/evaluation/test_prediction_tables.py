import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import graphslice as gs
from graphslice.evaluation.evaluate import _with_bounds
from graphslice.runs.run_files import read_splits
from graphslice.training import train


@pytest.fixture(scope="module")
def mixed_run(demo_rows, tiny_config, tmp_path_factory):
    """A run with a regression and a classification target, identifiers, and a missing label."""
    folder = tmp_path_factory.mktemp("mixed")
    table = demo_rows.assign(cmpd_id=[f"CMP-{row}" for row in range(60)])
    table["active"] = np.where(np.arange(60) % 3, "yes", "no")
    test_rows = table.index[table["split"] == "test"]
    table.loc[test_rows[0], "gap_ev"] = np.nan
    table.loc[3, "smiles"] = "oops"
    table.to_csv(folder / "t.csv", index=False)
    train(tiny_config(folder / "t.csv", data={"targets": "gap_ev,active", "id_column": "cmpd_id"}), folder / "run")
    return folder / "run", table


def test_test_predictions_have_identifiers_labels_and_intervals(mixed_run):
    folder, table = mixed_run
    found = pd.read_csv(folder / "test_predictions.csv")
    rows = read_splits(folder)["test"]
    assert list(found)[:5] == ["row", "smiles", "cmpd_id", "gap_ev_true", "active_true"]
    assert found["row"].tolist() == (rows + 1).tolist()
    assert found["cmpd_id"].tolist() == table["cmpd_id"][rows].tolist()
    assert found["active_true"].tolist() == table["active"][rows].tolist()
    pd.testing.assert_series_equal(found["gap_ev_true"], table["gap_ev"][rows], check_names=False, check_index=False)
    assert np.isnan(found["gap_ev_true"]).sum() == 1
    expected = gs.load(folder, "cpu").predict(table["smiles"][rows], interval=90).to_frame().drop(columns="error")
    assert list(found)[5:] == list(expected)
    for name in expected:
        if expected[name].dtype == float or expected[name].dtype == np.float32:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
        else:
            assert found[name].fillna("").tolist() == expected[name].tolist()


def test_validation_predictions_are_those_of_the_model(mixed_run):
    folder, table = mixed_run
    found = pd.read_csv(folder / "valid_predictions.csv")
    rows = read_splits(folder)["valid"]
    assert found["row"].tolist() == (rows + 1).tolist()
    expected = gs.load(folder, "cpu").predict(table["smiles"][rows], details=True).to_frame()
    for name in ("gap_ev_pred", "active_prob_yes"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_evaluate_writes_the_predictions_of_the_run(mixed_run, cli, tmp_path):
    folder, _ = mixed_run
    out = tmp_path / "p.csv"
    assert cli("evaluate", folder, "-o", out)[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(out), pd.read_csv(folder / "test_predictions.csv"), rtol=1e-4)
    code, _, err = cli("evaluate", folder, "--dataset", out, "-o", out, "--overwrite")
    assert code == 2 and f"{out} is an input file" in err


def test_evaluate_writes_the_reason_for_a_missing_prediction(mixed_run, cli, tmp_path):
    folder, table = mixed_run
    table.assign(smiles=["oops", *table["smiles"][1:]]).to_csv(tmp_path / "t.csv", index=False)
    code, _, err = cli("evaluate", folder, "--dataset", tmp_path / "t.csv", "--split", "all", "-o", tmp_path / "p.tsv")
    found = pd.read_csv(tmp_path / "p.tsv", sep="\t")
    assert code == 0 and len(found) == 60 and found["row"].tolist() == list(range(1, 61)), err
    assert found["error"].notna().tolist() == [row in (0, 3) for row in range(60)] and found["gap_ev_pred"].isna()[0]
    assert found["gap_ev_true"][0] == pytest.approx(table["gap_ev"][0])
    assert found["cmpd_id"].tolist() == table["cmpd_id"].tolist()


def test_split_and_rejected_rows_have_identifiers(mixed_run):
    folder, table = mixed_run
    found = pd.read_csv(folder / "split.csv")
    assert list(found) == ["row", "split", "smiles", "cmpd_id"]
    assert found["cmpd_id"].tolist() == table["cmpd_id"].drop(3).tolist()
    rejected = pd.read_csv(folder / "rejected.csv")
    assert list(rejected) == ["row", "smiles", "reason", "cmpd_id"]
    assert rejected["row"].tolist() == [4] and rejected["cmpd_id"].tolist() == ["CMP-3"]


def test_bounds_among_the_labels_are_written_as_bounds(demo_rows, tiny_config, tmp_path):
    table = demo_rows.astype({"gap_ev": str})
    first, second = table.index[table["split"] == "test"][:2]
    table.loc[first, "gap_ev"], table.loc[second, "gap_ev"] = ">12.5", "< 3"
    table.to_csv(tmp_path / "t.csv", index=False)
    train(tiny_config(tmp_path / "t.csv", trainer={"max_epochs": 1}), tmp_path / "run")
    found = pd.read_csv(tmp_path / "run" / "test_predictions.csv", index_col="row")["gap_ev_true"]
    assert found[first + 1] == ">12.5" and found[second + 1] == "<3"
    merged = _with_bounds(pa.array([None, 2.0]), np.array([[5.0, 10.0], [-np.inf, np.inf]]))
    assert merged.to_pylist() == [">5 and <10", "2"]
    others = [row for row in found.index if row not in (first + 1, second + 1)]
    assert [float(found[row]) for row in others] == [demo_rows["gap_ev"][row - 1] for row in others]
