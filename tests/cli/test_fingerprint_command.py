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


@pytest.mark.parametrize("from_table", [True, False])
def test_a_matrix(from_table, cli, run_directory, table, tmp_path):
    molecules = [table] if from_table else SMILES[:3]
    code, output, errors = cli("fingerprint", run_directory, *molecules, "-o", tmp_path / "found.npy")
    found = np.load(tmp_path / "found.npy")
    assert code == 0 and output == "" and f"{np.isnan(found[:, 0]).sum()} of {len(found)} rows are not valid" in errors
    expected = gs.load(run_directory, device="cpu").embed(SMILES if from_table else SMILES[:3])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False, True, False, False][: len(found)]


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


def test_bad_input(cli, run_directory, table, tmp_path):
    (tmp_path / "taken.csv").write_text("smiles,embedding_3\nC,1\n")
    for arguments, what in (
        ((tmp_path / "taken.csv",), "already has a column 'embedding_3'"),
        (("CCO", table), "is given together with other arguments"),
        (("oops",), "no row can be used; the first: not a valid molecule"),
    ):
        code, _, output = cli("fingerprint", run_directory, *arguments)
        assert code == 2 and what in output and len(output.splitlines()) == 1, output
    assert cli("fingerprint", run_directory, tmp_path / "taken.csv", "-o", tmp_path / "found.npy")[0] == 0


def test_a_matrix_of_many_chunks_is_that_of_all_rows(cli, run_directory, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.inference.files._CHUNK_ROWS", 2)
    (tmp_path / "molecules.csv").write_text("smiles\n" + "\n".join([*SMILES[:3], *SMILES[4:]]) + "\n")
    assert cli("fingerprint", run_directory, tmp_path / "molecules.csv", "-o", tmp_path / "found.npy")[0] == 0
    expected = gs.load(run_directory, device="cpu").embed([*SMILES[:3], *SMILES[4:]])
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-6)
