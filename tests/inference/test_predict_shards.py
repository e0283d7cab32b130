"""Prediction of folders in shards: the same files from any process, a restart, and folders of other predictions."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from graphslice.data.tables import list_shards, open_table
from graphslice.errors import InputError
from graphslice.inference.files import predict_file
from graphslice.inference.shards import SETTINGS, predict_shards

ROWS = 10


@pytest.fixture
def folder(demo_smiles, tmp_path, monkeypatch) -> Path:
    """Two tables of 35 and 8 rows; the groups of the first have 4 rows, shards have 10."""
    monkeypatch.setattr("graphslice.inference.shards.SHARD_ROWS", ROWS)
    folder = tmp_path / "tables"
    folder.mkdir()
    table = pd.DataFrame({"id": range(43), "smiles": [*demo_smiles[:20], "oops", *demo_smiles[20:42]]})
    table[:35].to_parquet(folder / "a.parquet", index=False, row_group_size=4)
    table[35:].to_csv(folder / "b.csv", index=False)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_have_the_rows_in_order(folder):
    shards = list_shards(folder, ROWS)
    assert [(s.file.name, s.begin, s.end) for s in shards[:4]] == [
        *(("a.parquet", begin, min(35, begin + 10)) for begin in range(0, 40, 10)),
    ]
    assert (shards[4].file.name, shards[4].end, len(shards)) == ("b.csv", None, 5)
    ids = []
    for shard in shards:
        with open_table(shard, rows=3) as table:
            chunks = [rows.table.column("id").to_pylist() for rows in table.chunks]
        assert max(map(len, chunks)) <= 3
        ids.append([int(number) for chunk in chunks for number in chunk])
    assert ids == [[*range(10)], [*range(10, 20)], [*range(20, 30)], [*range(30, 35)], [*range(35, 43)]]


def test_shards_have_the_predictions_of_one_file(folder, predictor, tmp_path):
    report = predict_shards(predictor, folder, tmp_path / "out")
    assert (report.rows, report.failed) == (43, 1) and report.first_error.startswith("not a valid molecule")
    found = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "out").glob("*.parquet")))
    assert list(found) == ["id", "smiles", "gap_ev_pred", "error"] and found["id"].astype(int).tolist() == [*range(43)]
    expected = predictor.predict(found["smiles"].tolist())[:, 0]
    np.testing.assert_allclose(found["gap_ev_pred"].astype(float), expected, rtol=1e-5)
    assert found["error"].notna().tolist() == [number == 20 for number in range(43)]


def test_parts_are_the_files_of_one_process(folder, predictor, tmp_path):
    predict_shards(predictor, folder, tmp_path / "whole", workers=2)
    reports = [predict_shards(predictor, folder, tmp_path / "parts", part=(n, 3)) for n in (3, 1, 2)]
    assert sum(report.rows for report in reports) == 43 and sum(report.failed for report in reports) == 1
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole") and len(contents(tmp_path / "whole")) == 6
    assert predict_shards(predictor, folder, tmp_path / "parts", part=(7, 7)).rows == 0
    counts = "10 rows in 1 file", "15 rows in 2 files", "18 rows in 2 files"
    assert [report.notes for report in reports] == [[f"{count} of {tmp_path / 'parts'}"] for count in counts]


def test_restart_predicts_what_is_missing_and_removes_rests(folder, predictor, tmp_path, monkeypatch):
    out, predicted = tmp_path / "out", []
    whole = predict_shards(predictor, folder, out)
    before = contents(out)
    (out / "000001.parquet").unlink()
    (out / ".000001.parquet.0123abcd.writing").write_bytes(b"half")

    def count(predictor, shard, *arguments, **options):
        predicted.append(shard.begin)
        return predict_file(predictor, shard, *arguments, **options)

    monkeypatch.setattr("graphslice.inference.shards.predict_file", count)
    done = []
    report = predict_shards(predictor, folder, out, progress=done.append)
    assert contents(out) == before and predicted == [10]
    assert (report.rows, report.failed, sum(done)) == (whole.rows, whole.failed, 43)
    assert report.notes == [f"43 rows in 5 files of {out}, 4 already there"]


@pytest.mark.parametrize("change", ["model", "interval", "input files"])
def test_folder_of_other_predictions_is_rejected(change, folder, predictor, tmp_path):
    out = tmp_path / "out"
    predict_shards(predictor, folder, out)
    before, options = contents(out), {}
    if change == "interval":
        options["interval"] = 90
    elif change == "input files":
        text = (folder / "b.csv").read_text()
        (folder / "b.csv").write_text(f"{text.rstrip()[:-1]}N\n")  # as long as before
    else:
        settings = json.loads((out / SETTINGS).read_text())
        settings[change] = "other"
        (out / SETTINGS).write_text(json.dumps(settings))
        before = contents(out)
    with pytest.raises(InputError, match=f"{change} changed"):
        predict_shards(predictor, folder, out, **options)
    assert contents(out) == before


def test_folder_of_other_tables_is_rejected(folder, predictor):
    with pytest.raises(InputError, match="holds Parquet files without"):
        predict_shards(predictor, folder, folder)
    assert sorted(contents(folder)) == ["a.parquet", "b.csv"]


def test_folder_of_different_columns_is_rejected_before_prediction(folder, predictor, tmp_path):
    """Readers of the folder of predictions would leave out columns that its first file does not have."""
    (folder / "c.csv").write_text("id,SMILES\n43,C\n")
    with pytest.raises(InputError, match=r"c\.csv has other columns than a\.parquet"):
        predict_shards(predictor, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_continues_after_a_kill(start, cli, run_directory, tmp_path):
    (tmp_path / "in").mkdir()
    for name, rows in {"a.csv": 50, "b.csv": 20_000}.items():
        (tmp_path / "in" / name).write_text("smiles\n" + "CCO\n" * rows)
    out = tmp_path / "out"
    command = ["predict", run_directory, tmp_path / "in", "-o", out, "--workers", 1]
    process = start(*command)
    while not list(out.glob(".000001*")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    finished = (out / "000000.parquet").stat().st_mtime_ns
    assert len(list(out.iterdir())) == 3
    code, _, err = cli(*command)
    assert code == 0, err
    assert sorted(path.name for path in out.iterdir()) == ["000000.parquet", "000001.parquet", SETTINGS]
    assert (out / "000000.parquet").stat().st_mtime_ns == finished
    assert len(pd.read_parquet(out)) == 20_050


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "3/2", "-o", "out"], "shard must be I/N"),
        (["--shard", "1/2", "-o", "out.parquet"], "give a table, and a folder as out"),
        (["--engine", "ray"], "give a table, and a folder as out"),
        (["-o", "out", "--overwrite"], "overwrite replaces a file, not a folder"),
    ],
)
def test_options_of_folders(options, message, cli, run_directory, folder, tmp_path):
    options = [tmp_path / option if option.startswith("out") else option for option in options]
    code, _, err = cli("predict", run_directory, folder, *options)
    assert code == 2 and message in err and [path.name for path in tmp_path.iterdir()] == ["tables"]
