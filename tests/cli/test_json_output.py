"""``--json``: one document of the stated keys on standard output, whatever happens."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from json_documents import document_of, parse
from pyarrow.parquet import write_table

import graphslice as gs
from graphslice.cli.main import JsonOutput, main


@pytest.fixture
def run(cli):
    """``run(command, *arguments)`` returns the document of a command, which has the stated keys."""

    def run(command: str, *arguments: object) -> dict:
        code, out, err = cli(command, *arguments, "--json")
        assert code == 0, err
        return document_of(command, out)

    return run


@pytest.fixture
def fail(cli):
    """``fail(*arguments)`` returns the document of a command that ends with exit code 2."""

    def fail(*arguments: object) -> dict:
        code, out, err = cli(*arguments, "--json")
        document = parse(out)
        assert code == 2 and err.endswith(f"graphslice: {document['error']}\n")
        return document

    return fail


def test_predictions_are_those_of_the_table(run, run_directory):
    smiles = ["CCO", "C[N", "c1ccccc1"]
    document = run("predict", run_directory, *smiles, "--interval", 50, "--nearest")
    expected = gs.load(run_directory, "cpu").predict(smiles, interval=50, nearest=True).to_frame()
    rows = pd.DataFrame(document["rows"])
    assert list(rows["smiles"]) == smiles and document["columns"] == list(expected.columns)
    pd.testing.assert_frame_equal(rows[document["columns"]], expected, check_dtype=False, rtol=1e-5)
    assert (document["total"], document["failed"]) == (3, 1)
    assert document["rows"][1]["error"] and document["rows"][1]["gap_ev_pred"] is None
    unbounded = run("predict", run_directory, "CCO", "--interval", 99)
    assert unbounded["rows"][0]["gap_ev_high"] is None and "unbounded" in unbounded["notes"][0]


def test_table_keeps_its_columns_and_types(run, run_directory, tmp_path):
    cells = {"smiles": ["CCO", "CC"], "id": [7, 8], "x": [0.1, float("nan")], "day": [pd.Timestamp("2026-01-31")] * 2}
    cells |= {"raw": [b"caf\xc3\xa9", b"\xff"], "many": [[0.1, None], None], "yes": [True, None]}
    pd.DataFrame(cells).to_parquet(tmp_path / "in.parquet")
    first, second = run("predict", run_directory, tmp_path / "in.parquet")["rows"]
    assert first["id"] == 7 and first["x"] == 0.1 and second["x"] is None and first["day"].startswith("2026-01-31")
    assert (first["raw"], second["raw"]) == ("café", "ÿ") and first["many"] == [0.1, None] and second["many"] is None
    assert first["yes"] is True and second["yes"] is None


def test_output_file_replaces_the_rows(run, run_directory, demo_csv, tmp_path):
    for command in ("predict", "fingerprint"):
        out = tmp_path / f"{command}.csv"
        document = run(command, run_directory, demo_csv, "-o", out)
        assert document["out"] == str(out) and "rows" not in document
        assert document["total"] == len(pd.read_csv(out)) == 60


def test_rows_are_written_while_they_come():
    file = io.StringIO()
    output = JsonOutput(file)
    for start in (0, 2):
        output.write(pa.table({"a": [start, start + 1], "b": ['"', "\ud7ff\n"]}))
        assert file.getvalue().count("\n") == start + 2  # a line for each, the last one open
    output.finish({"total": 4, "x": float("inf")})
    assert [row["a"] for row in parse(file.getvalue())["rows"]] == [0, 1, 2, 3]
    assert parse(file.getvalue())["x"] is None and file.getvalue().isascii()


def test_error_after_some_rows_completes_the_document(fail, run_directory, tmp_path):
    for number, values in enumerate((["1"] * 3, [1] * 3)):
        write_table(pa.table({"smiles": ["CCO"] * 3, "n": values}), tmp_path / f"{number}.parquet")
    document = fail("predict", run_directory, tmp_path)
    assert [row["smiles"] for row in document["rows"]] == ["CCO"] * 3
    assert "'n' of" in document["error"] and "(int64) than in" in document["error"] and "total" not in document
    document = fail("predict", run_directory, "C[N", "C(")  # no prediction at all
    assert document["rows"][0]["error"] and "no row can be used" in document["error"]


def test_evaluate_states_undefined_scores_and_failed_rows(run, run_directory, tmp_path):
    (tmp_path / "t.csv").write_text(f"smiles,gap_ev\nCCO,1\n{'C' * 600},2\nC[N,3\n")
    document = run("evaluate", run_directory, "--dataset", tmp_path / "t.csv")
    assert document["r2"] is None and document["molecules"] == 1 and document["unanswered"] == 2
    assert document["first_unanswered"]["row"] == 2


def test_inspect(run, run_directory, tmp_path):
    document = run("inspect", run_directory, "CCO", "C[N", "-o", tmp_path / "i")
    (molecule,), (left,) = document["molecules"], document["left_out"]
    one = molecule["targets"]["gap_ev"]
    assert molecule["elements"] == ["C", "C", "O"] and left["smiles"] == "C[N" and left["number"] == 2
    assert sum(one["contributions"]) == pytest.approx(one["prediction"] - one["baseline"], abs=1e-5)
    assert all(Path(file).is_file() for file in document["files"]) and document["folder"] == str(tmp_path / "i")


def test_train_and_resume(run, cli, demo_csv, tiny_flags, tmp_path):
    out = tmp_path / "run"
    document = run("train", "--dataset", demo_csv, *tiny_flags, "-o", out)
    assert document["folder"] == str(out) and Path(document["report"]).is_file()
    for name in ("metrics", "training"):
        assert document[name] == json.loads((out / f"{name}.json").read_text())
    assert run("train", "--resume", out)["metrics"] == document["metrics"]
    assert run("report", out) == {"report": str(out / "report.html")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict"], "required: predict.model"),
        (["predict", "absent", "CCO"], "no model at absent"),
        (["predct", "gap"], "invalid choice: 'predct'"),
        (["mcp", "--folder", "."], "unrecognized arguments: --json"),
    ],
)
def test_errors_are_documents(arguments, message, fail):
    document = fail(*arguments)
    assert [*document] == ["error"] and message in document["error"]


def test_messages_go_to_standard_error(cli, run_directory):
    plain, document = (cli("evaluate", run_directory, *flags) for flags in ([], ["--json"]))
    assert plain[1] and document[2] == plain[1] + plain[2]
    assert parse(document[1])


@pytest.mark.slow
def test_nothing_else_reaches_standard_output(capfd, monkeypatch, demo_csv, tiny_flags, tmp_path):
    """Such as what LightGBM prints below Python."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    flags = [flag for flag in tiny_flags if "baselines" not in flag] + ["--baselines", "on", "--refit", "off"]
    assert main(["train", "--dataset", str(demo_csv), *flags, "-o", str(tmp_path / "run"), "--json"]) == 0
    document = document_of("train", capfd.readouterr().out)
    assert document["metrics"]["baselines"]["test"].keys() > {"network", "forest"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_ends_in_one_sentence(run_directory):
    """In a process of its own, which has nothing more to say when it ends."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "graphslice", "predict", str(run_directory), "CCO", "--json"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and "No space left" in ended.stderr and ended.stderr.count("\n") == 1
