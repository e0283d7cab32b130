"""Prediction of files: formats, columns, malformed rows and atomic writes."""

import csv
import tempfile
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdkit import Chem

from graphslice.chem.hashes import hash_molecules
from graphslice.chem.molecule import read_smiles
from graphslice.config import DataConfig, GraphConfig
from graphslice.data.preprocess import featurize_dataset
from graphslice.data.store import GraphStore, StoreInfo, record_batch
from graphslice.data.tables import open_table
from graphslice.errors import InputError
from graphslice.inference.files import predict_file
from graphslice.inference.shards import predict_shards


def test_output_has_the_input_columns_and_predictions(predictor, tmp_path):
    table = pd.DataFrame({"id": ["007", "a,b", "x"], "smiles": ["CCO", "oops", "C"], "note": ["", 'q"', "two\nlines"]})
    table.to_csv(tmp_path / "in.csv", index=False)
    report = predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert (report.rows, report.failed) == (3, 1) and report.first_error.startswith("not a valid molecule")
    output = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert list(output) == ["id", "smiles", "note", "gap_ev_pred", "error"]
    assert pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)[list(table)].equals(table.astype(str))
    values = predictor.predict(table["smiles"])[:, 0]
    assert output["gap_ev_pred"].tolist()[1] == "" and output["error"].tolist()[::2] == ["", ""]
    assert [float(x) for x in output["gap_ev_pred"][::2]] == pytest.approx(values[::2].tolist(), rel=1e-6)
    assert output["error"][1] == report.first_error


def test_files_are_predicted_in_chunks_in_the_order_of_the_rows(predictor, tmp_path, monkeypatch):
    smiles = ["C" * (1 + n % 9) if n % 7 else "oops" for n in range(50)]
    pd.DataFrame({"n": range(50), "smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    monkeypatch.setattr("graphslice.inference.files.open_table", partial(open_table, rows=8))
    done = []
    report = predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.parquet", progress=done.append)
    assert done == [8] * 6 + [2] and (report.rows, report.failed) == (50, 8)
    output = pd.read_parquet(tmp_path / "out.parquet")
    assert output["n"].tolist() == [str(n) for n in range(50)] and output["smiles"].tolist() == smiles
    np.testing.assert_allclose(output["gap_ev_pred"], predictor.predict(smiles)[:, 0], rtol=1e-5)
    assert (output["error"].notna() == (output["smiles"] == "oops")).all()
    assert pq.read_table(tmp_path / "out.parquet")["gap_ev_pred"].null_count == 8  # no nan, which means would spread


def test_every_record_of_an_sdf_file_has_a_prediction_or_a_reason(predictor, tmp_path, monkeypatch):
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("C[C@H](N)C(=O)O"))
    good, bad = f"{block}>  <id>\n7\n\n$$$$\n", f"{block.replace(' N ', ' ? ')}>  <id>\n8\n\n$$$$\n"
    (tmp_path / "in.sdf").write_text((good + bad) * 5 + good[:-20])
    monkeypatch.setattr("graphslice.inference.files.open_table", partial(open_table, rows=3))
    report = predict_file(predictor, tmp_path / "in.sdf", tmp_path / "out.csv")
    assert (report.rows, report.failed) == (11, 6)
    output = pd.read_csv(tmp_path / "out.csv")
    assert list(output) == ["smiles", "id", "gap_ev_pred", "error"]
    assert output["id"].tolist()[:-1] == [7, 8] * 5
    assert output["gap_ev_pred"][:-1:2].to_numpy() == pytest.approx(predictor.predict("C[C@H](N)C(=O)O")[0, 0])
    assert output["gap_ev_pred"].isna().tolist() == output["error"].notna().tolist() == [False, True] * 5 + [True]
    assert [f"record {n} of in.sdf" in output["error"][n - 1] for n in (2, 4, 6, 8, 10, 11)] == [True] * 6


def test_interrupted_prediction_keeps_the_former_output(predictor, tmp_path, monkeypatch):
    pd.DataFrame({"smiles": ["C"] * 50}).to_csv(tmp_path / "in.csv", index=False)
    (tmp_path / "out.csv").write_text("the old file")
    monkeypatch.setattr("graphslice.inference.files.open_table", partial(open_table, rows=8))

    chunks = []

    def progress(rows: int) -> None:
        chunks.append(rows)
        if len(chunks) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv", overwrite=True, progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    assert (tmp_path / "out.csv").read_text() == "the old file"


def test_output_must_not_be_a_file_of_the_input(predictor, tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("smiles\nC\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "b.csv")
    for source in (tmp_path / "b.csv", tmp_path):
        with pytest.raises(InputError, match=r"link\.csv is an input file"):
            predict_file(predictor, source, tmp_path / "link.csv", overwrite=True)
    assert (tmp_path / "b.csv").read_text() == "smiles\nC\n"


@pytest.mark.parametrize("column", ["gap_ev_pred", "error"])
def test_input_must_not_have_an_output_column(column, predictor, tmp_path):
    (tmp_path / "in.csv").write_text(f"smiles,{column}\nC,1\n")
    with pytest.raises(InputError, match=f"already has columns .*'{column}'"):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.csv.gz", "in.xlsx", "in.parquet", "in.smi"])
def test_every_file_format(name, predictor, tmp_path):
    table = pd.DataFrame({"smiles": ["CCO", "C"], "name": ["a", "b"]})
    if name.endswith("parquet"):
        table.to_parquet(tmp_path / name)
    elif name.endswith("xlsx"):
        table.to_excel(tmp_path / name, index=False)
    else:
        table.to_csv(tmp_path / name, sep="," if "csv" in name else "\t", index=False, header="smi" not in name)
    predict_file(predictor, tmp_path / name, tmp_path / "out.csv")
    output = pd.read_csv(tmp_path / "out.csv")
    assert list(output) == ["smiles", "name", "gap_ev_pred", "error"] and output["name"].tolist() == ["a", "b"]
    np.testing.assert_allclose(output["gap_ev_pred"], predictor.predict(["CCO", "C"])[:, 0], rtol=1e-6)


def test_smiles_column_of_the_training_is_the_default(predictor, tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_text("smiles,other\noops,CCO\n")
    (tmp_path / "in.smi").write_text("CCO oops\n")  # a .smi file has no header
    (tmp_path / "without.csv").write_text("smiles\nCCO\n")
    data = predictor.config.data
    for source, trained, named in (
        *(("in.csv", "other", None), ("in.csv", "smiles", "other")),
        *(("in.smi", "name", None), ("without.csv", "other", None)),
    ):
        monkeypatch.setattr(predictor, "config", replace(predictor.config, data=replace(data, smiles_column=trained)))
        predict_file(predictor, tmp_path / source, tmp_path / "out.csv", smiles_column=named, overwrite=True)
        assert pd.read_csv(tmp_path / "out.csv")["gap_ev_pred"].notna().all()


def test_preprocessed_rows_keep_their_reasons_if_the_molecules_are_parsed_again(predictor, tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("smiles,gap_ev\nCCO,1\nC,1,2\nC(,2\n")
    data = DataConfig(str(tmp_path / "t.csv"), targets="gap_ev", rejected="any")
    featurize_dataset(data, GraphConfig(), tmp_path / "in.arrow", workers=1)
    for again in (False, True):
        monkeypatch.setattr(type(predictor), "can_read", lambda *store, again=again: not again)
        predict_shards(predictor, tmp_path / "in.arrow", tmp_path / f"out{again}")
        assert pd.read_parquet(tmp_path / f"out{again}")["error"].fillna("").tolist() == [
            "",
            "3 fields where the header has 2 (line 3 of t.csv)",
            "not a valid SMILES: syntax error at character 2",
        ]


MALFORMED = "id,smiles,note\n1,CCO,a\n2,C\n3,CC,b,c\n4,CCCC,e\n"


@pytest.mark.parametrize(("name", "rows"), [("out.csv", 8192), ("out.parquet", 2)])
def test_malformed_rows_get_an_error_message(name, rows, predictor, tmp_path, monkeypatch):
    """Malformed rows keep their position and cells; the other rows are predicted."""
    monkeypatch.setattr("graphslice.inference.files.open_table", partial(open_table, rows=rows))
    (tmp_path / "in.csv").write_text(MALFORMED)
    report = predict_file(predictor, tmp_path / "in.csv", tmp_path / name)
    assert (report.rows, report.failed) == (4, 2)
    output = pd.read_parquet(tmp_path / name) if "parquet" in name else pd.read_csv(tmp_path / name)
    assert list(output) == ["id", "smiles", "note", "gap_ev_pred", "error"]
    assert output["id"].astype(int).tolist() == [1, 2, 3, 4]
    assert output["smiles"].tolist() == ["CCO", "C", "CC", "CCCC"]
    assert output["note"].fillna("").tolist() == ["a", "", "b", "e"]
    assert output["error"].fillna("").tolist() == [
        "",
        "2 fields where the header has 3 (line 3 of in.csv)",
        "4 fields where the header has 3 (line 4 of in.csv)",
        "",
    ]
    expected = predictor.predict(["CCO", "", "", "CCCC"])[:, 0]
    np.testing.assert_allclose(output["gap_ev_pred"].astype(float), expected, rtol=1e-5)


def test_very_long_cells(predictor, tmp_path):
    (tmp_path / "in.csv").write_text(f"smiles,note\nCC,{'x' * 200_000}\n{'C' * 200_000},\n")
    assert predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv").failed == 1
    with open_table(tmp_path / "out.csv") as table:
        (chunk,) = (rows.table for rows in table.chunks)
    assert chunk.column("error").to_pylist()[1].startswith("200000 atoms, more than the limit")
    assert len(chunk.column("note")[0].as_py()) == 200_000


PIECES = st.sampled_from([b"C", b"1", b",", b";", b"\n", b"\r\n", b"\r", b"\xe9", b"\0", b" ", b"\nCC,1\n", b"\nO\n"])


@settings(max_examples=max(40, settings().max_examples // 10))
@given(st.lists(PIECES, max_size=20).map(b"".join))
def test_every_row_has_a_prediction_or_an_error(predictor, content):
    """Output has as many rows as the input, each with either a prediction or an error message."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.csv", Path(folder) / "out.csv"
        source.write_bytes(b"smiles,y\nCC,1\n" + content)
        report = predict_file(predictor, source, out)
        with open_table(source) as table:
            rows = sum(map(len, table.chunks))
        with out.open(newline="", encoding="latin-1") as file:
            output = list(csv.DictReader(file))
    assert len(output) == report.rows == rows and output[0]["gap_ev_pred"]
    assert all((row["gap_ev_pred"] == "") == (row["error"] != "") for row in output)


@pytest.fixture
def graphs(demo_rows, tmp_path):
    """A preprocessed dataset of five graphs without SMILES."""
    arrays, *_ = read_smiles(demo_rows["smiles"][:5])
    schema = StoreInfo().schema()
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), schema) as writer:
        writer.write_batch(record_batch(schema, arrays, [None] * 5, keys=hash_molecules(arrays)))
    return tmp_path / "in.arrow"


def test_preprocessed_graphs_are_predicted_by_row(predictor, demo_rows, graphs, tmp_path):
    predict_file(predictor, graphs, tmp_path / "out.csv")
    output = pd.read_csv(tmp_path / "out.csv")
    assert list(output) == ["row", "gap_ev_pred", "error"] and output["row"].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(output["gap_ev_pred"], predictor.predict(demo_rows["smiles"][:5])[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("section", "setting", "message"),
    [
        ("graph", {"max_atoms": 99}, "featurize with .* --graph.max_atoms 99"),
        ("graph", {"standardize": "parent"}, "featurize with .* --graph.standardize parent"),
        ("data", {"features": "morgan"}, "has no descriptors morgan"),
        ("model", {"level": "atom"}, "has no SMILES, which define the order of atom-level predictions"),
    ],
)
def test_graphs_that_lack_what_the_model_reads_are_rejected(section, setting, message, predictor, graphs):
    config = replace(predictor.config, **{section: replace(getattr(predictor.config, section), **setting)})
    model = copy(predictor)
    model.config = config
    with pytest.raises(InputError, match=message):
        model.can_read(GraphStore.open(graphs))
