"""``graphslice fingerprint``: the numbers of ``Model.embed``, row by row."""

import numpy as np
import pandas as pd
import pytest

import graphslice as gs

SMILES = ["CCO", "oops", "c1ccccc1O", "", "[Na+].[Cl-]", "C"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv"
    pd.DataFrame({"name": list("abcdef"), "smiles": SMILES}).to_csv(path, index=False)
    return path


def test_a_matrix(cli, run_directory, tmp_path):
    code, output, errors = cli("fingerprint", run_directory, *SMILES, "-o", tmp_path / "found.npy")
    assert code == 0 and output == "" and "2 of 6 rows are not valid" in errors
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, gs.load(run_directory, device="cpu").embed(SMILES), atol=1e-6)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False, True, False, False]


@pytest.mark.parametrize("name", ["found.csv", "found.parquet"])
def test_a_table(cli, run_directory, table, tmp_path, name):
    assert cli("fingerprint", run_directory, table, "-o", tmp_path / name)[0] == 0
    found = pd.read_csv(tmp_path / name) if name.endswith("csv") else pd.read_parquet(tmp_path / name)
    expected = gs.load(run_directory, device="cpu").embed(SMILES)
    names = [f"embedding_{i}" for i in range(expected.shape[1])]
    assert list(found.columns) == ["name", "smiles", *names, "error"]
    np.testing.assert_allclose(found[names].to_numpy(np.float32), expected, atol=1e-5)
    assert found["error"].notna().tolist() == [False, True, False, True, False, False]


def test_standard_output_and_malformed_rows(cli, run_directory, tmp_path):
    (tmp_path / "molecules.csv").write_text("smiles,x\nCCO,1\nC,2,3\n")
    code, output, _ = cli("fingerprint", run_directory, tmp_path / "molecules.csv")
    lines = output.splitlines()
    assert code == 0 and len(lines) == 3 and lines[0].startswith("smiles,x,embedding_0,")
    assert "fields" in lines[2] and ",,,," in lines[2]


def test_a_matrix_of_many_chunks_is_that_of_all_rows(cli, run_directory, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.inference.files._CHUNK_ROWS", 2)
    (tmp_path / "molecules.csv").write_text("smiles\n" + "\n".join([*SMILES[:3], *SMILES[4:]]) + "\n")
    assert cli("fingerprint", run_directory, tmp_path / "molecules.csv", "-o", tmp_path / "found.npy")[0] == 0
    expected = gs.load(run_directory, device="cpu").embed([*SMILES[:3], *SMILES[4:]])
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-6)
