"""What ``graphslice inspect`` writes, and of which molecules."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

from graphslice.analysis import attribute, inspection
from graphslice.analysis.inspection import InputMolecule, check_output_table, inspect, read_input_molecules
from graphslice.errors import InputError
from graphslice.inference.predictor import Predictor

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "[H]OC([H])([H])[C@H](F)Cl"]


@pytest.fixture(scope="module")
def inspected(make_predictor, tmp_path_factory):
    predictor = make_predictor(10.0, targets=("a_gap", "b"), layers=2)
    out = tmp_path_factory.mktemp("inspect")
    return predictor, inspect(predictor, SMILES, out, target="GAP", orders=8), out


def test_files(inspected):
    _, found, out = inspected
    assert set(found.files) == set(out.iterdir()) and len(found.files) == len(set(found.files))
    pictures = {f"atoms-{i}.{kind}" for i in range(1, 6) for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {"atoms.csv", "overview.png", *pictures}
    assert (found.target, found.more, found.left_out) == (0, False, [])


def test_the_table_has_what_attribute_gives_in_the_digits_of_the_picture(inspected):
    predictor, found, out = inspected
    table = pd.read_csv(out / "atoms.csv", dtype={"contribution": str, "prediction": str, "baseline": str})
    for one, smiles in zip(found.found, SMILES, strict=True):
        mine = table[(table["molecule"] == one.number) & (table["target"] == "b")]
        mol, expected = Chem.MolFromSmiles(smiles), attribute(predictor, smiles, orders=8)
        assert mine["element"].tolist() == [atom.GetSymbol() for atom in mol.GetAtoms()] == one.elements
        assert mine["atom"].tolist() == list(range(mol.GetNumAtoms()))
        explanations = one.explanations[1]
        unit = 10.0**-explanations.digits.decimals
        np.testing.assert_allclose(mine["contribution"].astype(float), expected.values[:, 1], atol=0.5001 * unit)
        minus = [text.replace("-", "\N{MINUS SIGN}") for text in mine["contribution"]]
        assert minus == [explanations.digits.text(value) for value in explanations.values]
        answer = predictor.predict(smiles)[0, 1]
        assert float(mine["prediction"].iloc[0]) == pytest.approx(answer, abs=0.51 * unit + 1e-4)


@pytest.mark.parametrize("everything", [False, True])
def test_what_another_call_left_is_removed(make_predictor, tmp_path, everything):
    mine = [tmp_path / "notes.txt", tmp_path / "atoms-of-mine.png", tmp_path / "overview.md"]
    (tmp_path / "atoms-7.png").touch()  # no table beside it: not of another call
    inspect(make_predictor(), ["CC", "CCO"], tmp_path, everything=everything)
    assert (tmp_path / "spectra.csv").exists() == everything
    for path in mine:
        path.write_text("kept")
    found = inspect(make_predictor(), ["CC"], tmp_path)
    assert set(tmp_path.iterdir()) == {*found.files, *mine}


def test_tables_of_others_stay(make_predictor, tmp_path):
    kept = {"atoms.csv": "x,y,z\n0,0,0\n", "spectra.csv": "kept"}
    for name, text in kept.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=r"an atoms\.csv that no inspection wrote"):
        inspect(make_predictor(), ["CC"], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == kept


def test_the_input_is_not_written_over(make_predictor, tmp_path):
    inspect(make_predictor(), ["CC"], tmp_path)
    with pytest.raises(InputError, match=r"atoms\.csv lies where"):
        check_output_table(["C", tmp_path / "atoms.csv"], tmp_path)
    check_output_table(["C", tmp_path / "atoms-1.png"], tmp_path)
    check_output_table(["C", tmp_path / "atoms.csv"], tmp_path / "other")


def test_nothing_is_written_for_what_is_no_molecule(make_predictor, tmp_path):
    for smiles, target, said in (
        (["C(", "C)"], None, r"cannot inspect .C\(.: not a valid SMILES"),
        (["C"], "gap", "no target 'gap': it has 'y'"),
        ([], None, "at least one molecule"),
    ):
        with pytest.raises(InputError, match=said):
            inspect(make_predictor(), smiles, tmp_path / "out", target=target)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write the folder"):
        inspect(make_predictor(), ["C"], tmp_path / "file" / "out", orders=2)
    assert not (tmp_path / "out").exists()


def test_bad_molecules_keep_their_numbers(make_predictor, tmp_path):
    found = inspect(make_predictor(), ["C(", "CO", "", "CO", "*C"], tmp_path)
    assert [one.number for one in found.found] == [2, 4]
    assert [(number, text) for number, text, _ in found.left_out] == [(1, "C("), (3, ""), (5, "*C")]
    assert set(pd.read_csv(tmp_path / "atoms.csv")["molecule"]) == {2, 4}
    assert {path.stem for path in tmp_path.glob("atoms-*.png")} == {"atoms-2", "atoms-4"}


def test_of_many_the_first_are_drawn(make_predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "MAX_DRAWN", 3)
    done = []
    found = inspect(make_predictor(), ["oops", *"CNOSF"], tmp_path, progress=done.append)
    assert [one.smiles for one in found.found] == list("CNO") and found.more and done == [1, 1, 1]
    assert not inspect(make_predictor(), ["oops", *"CNO", "oops"], tmp_path).more


def test_everything_of_several_models_is_refused(make_predictor, tmp_path):
    both = Predictor(make_predictor().checkpoints * 2, "cpu")
    assert len(inspect(both, ["CC"], tmp_path / "maps").files) == 3
    with pytest.raises(InputError, match="2 models answer together"):
        inspect(both, ["CC"], tmp_path / "all", everything=True)
    assert not (tmp_path / "all").exists()


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.parquet", "m.smi"])
def test_words_and_files_in_turn(make_predictor, tmp_path, name):
    rows = pd.DataFrame({"smiles": ["CCO", "oops", "CC"], "name": ["a", "b", "c"]})
    path = tmp_path / name
    if name.endswith("parquet"):
        rows.to_parquet(path)
    else:
        rows.to_csv(path, index=False, sep="," if name.endswith("csv") else "\t", header=not name.endswith("smi"))
    given = list(read_input_molecules(make_predictor(), ["N", str(path), "O" * 300]))
    assert [one.smiles for one in given] == ["N", "CCO", "oops", "CC", "O" * 300]


def test_columns_and_rows_of_a_file(make_predictor, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("id,structure text\n1,CCO\n2,CC,3\n3,C\n")
    with pytest.raises(InputError, match="which column holds the SMILES"):
        list(read_input_molecules(make_predictor(), [path]))
    with pytest.raises(InputError, match="no column 'structure'"):
        list(read_input_molecules(make_predictor(), [path], "structure"))
    given = list(read_input_molecules(make_predictor(), [path], "structure text"))
    assert [one.smiles for one in given] == ["CCO", "CC", "C"]
    assert [bool(one.error) for one in given] == [False, True, False]
    found = inspect(make_predictor(), given, tmp_path / "out")
    assert [one.number for one in found.found] == [1, 3] and found.left_out[0][:2] == (2, "CC")


def test_files_that_cannot_be_used(make_predictor, tmp_path):
    for name, said in (("none.csv", "none.csv"), ("a.arrow", "keeps no SMILES")):
        with pytest.raises(InputError, match=said):
            inspect(make_predictor(), read_input_molecules(make_predictor(), ["C", tmp_path / name]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_row_is_malformed(make_predictor, tmp_path):
    found = inspect(make_predictor(), [InputMolecule("C", error="three fields"), InputMolecule("CC")], tmp_path)
    assert found.left_out == [(1, "C", "three fields")]
