"""``graphslice predict``."""

import signal
import time

import numpy as np
import pandas as pd
import pytest

import graphslice as gs


def test_smiles_to_stdout(cli, run_directory, predictor):
    code, out, err = cli("predict", run_directory, "CCO", "oops", "c1ccccc1", "--device", "cpu")
    lines = [line.split(",", 2) for line in out.splitlines()]
    assert code == 0 and lines[0] == ["smiles", "gap_ev_pred", "error"]
    assert [line[0] for line in lines[1:]] == ["CCO", "oops", "c1ccccc1"]
    values = predictor.predict(["CCO", "c1ccccc1"])[:, 0]
    assert [float(lines[1][1]), float(lines[3][1])] == pytest.approx(values.tolist(), rel=1e-6)
    assert lines[2][1] == "" and lines[2][2].startswith("not a valid molecule") and lines[1][2] == ""
    assert err == "warning: 1 of 3 rows have no prediction: see the reasons in column 'error'\n"


FILES = {"out.csv": "model.safetensors", "out.parquet": "", "new/folder/out.csv.gz": "", None: ""}


@pytest.mark.parametrize(("out_name", "model"), FILES.items())
def test_predict_a_file(out_name, model, cli, run_directory, demo_csv, demo_rows, tmp_path):
    flags = [] if out_name is None else ["-o", tmp_path / out_name]
    code, out, err = cli("predict", run_directory / model, demo_csv, *flags)
    assert (code, err) == (0, "")
    if out_name is None:
        (tmp_path / "stdout.csv").write_text(out)
    path = tmp_path / (out_name or "stdout.csv")
    found = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    assert list(found) == ["smiles", "gap_ev", "split", "gap_ev_pred", "error"]
    assert found["smiles"].tolist() == demo_rows["smiles"].tolist() and found["error"].isna().all()
    expected = gs.load(run_directory / model, "cpu").predict(demo_rows["smiles"])[:, 0]
    np.testing.assert_allclose(found["gap_ev_pred"], expected, rtol=1e-5)


@pytest.mark.parametrize("command", ["predict", "fingerprint"])
def test_existing_file_is_replaced_only_on_request(command, cli, run_directory, tmp_path):
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("smiles\nCCO\n")
    out.write_text("mine")
    for molecules in (table, "CCO"):
        code, stdout, err = cli(command, run_directory, molecules, "-o", out)
        assert code == 2 and stdout == "" and "overwrite" in err and out.read_text() == "mine"
    assert cli(command, run_directory, "CCO", "-o", out, "--overwrite")[0] == 0
    assert out.read_text().startswith("smiles,")
    for flags in ([], ["--overwrite"]):
        code, _, err = cli(command, run_directory, table, "-o", table, *flags)
        assert code == 2 and "is an input file" in err and table.read_text() == "smiles\nCCO\n"


def test_progress_of_compressed_files_has_no_total(cli, run_directory, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.system.console._LINE_SECONDS", 0)
    pd.DataFrame({"smiles": ["CCO"] * 3}).to_csv(tmp_path / "in.csv.gz", index=False)
    _, _, err = cli("predict", run_directory, tmp_path / "in.csv.gz", "-o", tmp_path / "out.csv")
    assert "predicting: 3, " in err and "left" not in err


@pytest.mark.parametrize("name", ["data/missing.txt", "my new compounds.xlsm"])
def test_missing_file_is_no_smiles(name, run_directory, cli, tmp_path):
    code, _, err = cli("predict", run_directory, name, "-o", tmp_path / "out.csv")
    assert (code, err) == (2, f"graphslice: no file at {name}\n") and not (tmp_path / "out.csv").exists()


def test_dash_reads_a_table_from_standard_input(run_directory, demo_csv, cli, monkeypatch):
    expected = cli("predict", run_directory, demo_csv)[1]
    with demo_csv.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert cli("predict", run_directory, "-") == (0, expected, "") and expected.count("\n") == 61


def test_sigterm_leaves_no_temporary_file(start, run_directory, tmp_path):
    (tmp_path / "in.csv").write_text("smiles\n" + "CCO\n" * 4_000_000)
    process = start("predict", run_directory, tmp_path / "in.csv", "-o", tmp_path / "out.csv", "--workers", 1)
    while not list(tmp_path.glob(".out.csv*")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_next_call_removes_the_rest_of_a_killed_one(run_directory, cli, tmp_path):
    (tmp_path / ".out.csv.0123abcd.writing").write_text("half")
    assert cli("predict", run_directory, "CCO", "-o", tmp_path / "out.csv")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
