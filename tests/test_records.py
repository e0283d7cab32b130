"""Tests of the scripts that check splits, record runs and fill the tables of docs/results.md."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import marks
import record
import result_tables
import split_check
import zinc_types
from graphslice.chem.molecule import smiles_to_graph

LEAKING = [
    ("CCO", "train"),
    ("OCC", "test"),  # the same molecule in another SMILES notation
    ("C[C@H](N)C(=O)O", "train"),
    ("C[C@@H](N)C(=O)O.Cl", "valid"),  # a salt of its enantiomer: the same family
    ("CC(N)C(=O)[O-]", "test"),
    ("c1ccccc1", "test"),
    ("not a molecule", "train"),
]


def test_overlap_of_molecules_and_families_is_printed_in_one_line(capsys):
    smiles, split = zip(*LEAKING, strict=True)
    found = split_check.check_split(smiles, split, "leaking.csv")
    assert found == split_check.SplitOverlap(1, 2, 1, 2, 3)
    line = "leaking.csv: on several sides of the split: canonical SMILES 1, families 2; "
    assert capsys.readouterr().err == line + "test rows that share theirs with train or valid: 1 and 2 of 3\n"


def test_scripts_that_read_a_split_report_the_overlap(tmp_path, monkeypatch, capsys):
    table = tmp_path / "leaking.csv"
    pd.DataFrame(LEAKING[:-1], columns=["smiles", "split"]).assign(score=range(6)).to_csv(table, index=False)
    monkeypatch.setattr(sys, "argv", ["split_check", str(table), "-o", str(tmp_path / "splits.jsonl")])
    split_check.main()
    (line,) = map(json.loads, (tmp_path / "splits.jsonl").read_text().splitlines())
    assert line["table"] == "leaking" and line["rows"] == 6 and line["families"] == 2
    monkeypatch.setattr(sys, "argv", ["zinc_types", str(table), "-o", str(tmp_path / "types.arrow")])
    zinc_types.main()
    assert "leaking.csv: on several sides of the split" in capsys.readouterr().err


def test_features_perceived_in_a_zinc_graph_are_those_of_its_smiles_without_stereochemistry():
    smiles = ["c1ccc2[nH]ccc2c1", "C[C@H]([NH3+])C(=O)[O-]", "C/C=C/C#N", "O=c1cc[nH]c(=S)n1C", "C[S+]([O-])c1cscn1"]
    types: dict[tuple[str, int, int], int] = {}
    graphs = [zinc_types.restricted(molecule, types) for molecule in smiles]
    for molecule, graph in zip(smiles, graphs, strict=True):
        found, expected = zinc_types.perceived(graph, list(types)), smiles_to_graph(molecule)
        np.testing.assert_array_equal(found.bonds, expected.bonds)
        np.testing.assert_array_equal(found.atoms[:, 0], graph.atoms[:, 0])
        np.testing.assert_array_equal(found.atoms[:, 2:], expected.atoms[:, 2:])
        np.testing.assert_array_equal(found.bond_features[:, [0, 2]], expected.bond_features[:, [0, 2]])
        assert not found.atoms[:, 1].any() and not found.bond_features[:, 1].any()


def run_directory(folder: Path) -> Path:
    folder.mkdir()
    config = {"data": {"dataset": "/somewhere/else/my.csv", "targets": "y"}, "model": {"mixer": "csp"}}
    config |= {"trainer": {"batch_size": 2, "max_epochs": None, "seed": 3}, "init_from": "/somewhere/else/runs/other"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    scores = {"mae": 0.1234567, "targets": {"y": {"mae": 0.1234567}}}
    metrics = {"metric": "mae", "valid": scores, "test": scores, "baselines": {"test": {"forest": 0.3}}}
    training = {"parameters": 7, "steps": 8, "seconds": 61.7, "device": "a processor"}
    start = {"version": "0.1.0", "date": "2026-11-25T01:02:41+00:00", "machine": {"cores": 2}}
    start["command"] = "graphslice train --dataset /somewhere/else/my.csv"
    for name, content in (("metrics", metrics), ("training", training), ("start", start)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "split.csv").write_text("row,split\n1,train\n2,train\n3,train\n4,test\n")
    return folder


def test_run_is_recorded_without_paths(tmp_path, monkeypatch):
    run, out = run_directory(tmp_path / "run"), tmp_path / "out.jsonl"
    monkeypatch.setattr(sys, "argv", ["record", str(run), "-o", str(out), "--model", "`csp`"])
    record.main()
    record.main()  # appends to the file
    first, second = map(json.loads, out.read_text().splitlines())
    assert first == second and "somewhere" not in out.read_text()
    assert first["model"] == "`csp`" and first["dataset"] == "my.csv" and first["init_from"] == "other"
    assert first["epochs"] == 4 and first["seconds"] == 62 and first["test"] == {"mae": 0.12346}
    assert first["machine"] == "a processor" and first["seed"] == 3 and first["baselines"] == {"forest": 0.3}


def test_runs_of_one_model_share_a_row():
    shared = {"model": "a", "valid": {"mae": 0.5}, "machine": "m", "parameters": 1234, "epochs": 30}
    lines = [shared | {"test": {"mae": mae}, "seconds": 60 * mae * 100} for mae in (0.1, 0.3)]
    lines += [{"model": "b", "test": {"mae": 0.25}, "source": "transcribed", "machine": "other"}]
    text = result_tables.record_table(lines)
    assert "| a | 0.200 ± 0.141 | 0.500 ± 0.000 | 0.1, 0.3 | 1,234 | 30 | 10 to 30 |" in text
    assert "| b | 0.250 |  | 0.25 |  |  |  |" in text
    assert "Measured on m. Transcribed because the run directories were not kept: b." in text


def test_marked_parts_are_filled():
    text = 'a\n\n<!-- table: x -->\n\nold\n\n<!-- /table: x -->\n\nb <span id="n">0</span>\n\n<!-- y -->\n\n'
    text += '<span id="z">1</span>\n'
    made = {"table: x": "| x |\n", "n": "7"}
    assert marks.names(text) == ["table: x", "n", "z"]
    expected = text.replace("old", "| x |").replace("0<", "7<")
    assert marks.fill(text, made.get) == expected
    assert marks.fill(expected, made.get) == expected


def test_documents_have_every_table_of_the_results():
    texts = [document.read_text(encoding="utf-8") for document in result_tables.DOCUMENTS]
    tables = result_tables.all_tables()
    assert all(marks.fill(text, tables.get) == text for text in texts)
    assert set(marks.names("".join(texts))) == {*tables}
