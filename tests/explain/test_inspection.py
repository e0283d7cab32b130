"""Files, input molecules and errors of ``graphslice inspect``."""

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

from graphslice.errors import InputError
from graphslice.explain import inspect as inspection
from graphslice.explain.attribution import attribute
from graphslice.explain.inspect import inspect, read_input_molecules

SMILES = ["CC(=O)Nc1ccccc1", "[Na+].[Cl-]", "C", "O=C(O)C1CC1", "[H]OC([H])([H])[C@H](F)Cl"]


@pytest.fixture(scope="module")
def inspected(make_predictor, tmp_path_factory):
    predictor = make_predictor(10.0, targets=("a_gap", "b"), layers=2)
    out = tmp_path_factory.mktemp("inspect")
    return predictor, inspect(predictor, SMILES, out, target="GAP", orders=8), out


def test_output_files(inspected):
    _, result, out = inspected
    assert set(result.files) == set(out.iterdir()) and len(result.files) == len(set(result.files))
    pictures = {f"atoms-{i}.{kind}" for i in range(1, 6) for kind in ("png", "svg")}
    assert {path.name for path in out.iterdir()} == {"atoms.csv", "overview.png", *pictures}
    assert (result.target, result.more, result.left_out) == (0, False, [])


def test_table_matches_attribute_rounded_as_in_the_figure(inspected):
    predictor, result, out = inspected
    table = pd.read_csv(out / "atoms.csv", dtype={"contribution": str, "prediction": str, "baseline": str})
    for one, smiles in zip(result.found, SMILES, strict=True):
        mine = table[(table["molecule"] == one.number) & (table["target"] == "b")]
        mol, expected = Chem.MolFromSmiles(smiles), attribute(predictor, smiles, orders=8)
        assert mine["element"].tolist() == [atom.GetSymbol() for atom in mol.GetAtoms()] == one.elements
        assert mine["atom"].tolist() == list(range(mol.GetNumAtoms()))
        explanation = one.explanations[1]
        unit = 10.0**-explanation.digits.decimals
        np.testing.assert_allclose(mine["contribution"].astype(float), expected.values[:, 1], atol=0.5001 * unit)
        minus = [text.replace("-", "\N{MINUS SIGN}") for text in mine["contribution"]]
        assert minus == [explanation.digits.text(value) for value in explanation.values]
        prediction = predictor.predict(smiles)[0, 1]
        assert float(mine["prediction"].iloc[0]) == pytest.approx(prediction, abs=0.51 * unit + 1e-4)


def test_outputs_of_an_earlier_call_are_removed(make_predictor, tmp_path):
    mine = [tmp_path / "notes.txt", tmp_path / "atoms-of-mine.png", tmp_path / "overview.md"]
    (tmp_path / "atoms-7.png").touch()  # without a table, not an output of an earlier call
    inspect(make_predictor(), ["CC", "CCO"], tmp_path)
    for path in mine:
        path.write_text("kept")
    result = inspect(make_predictor(), ["CC"], tmp_path)
    assert set(tmp_path.iterdir()) == {*result.files, *mine}


def test_invalid_input_raises_and_writes_nothing(make_predictor, tmp_path):
    for smiles, target, message in (
        (["C(", "C)"], None, r"cannot inspect .C\(.: not a valid SMILES"),
        (["C"], "gap", "no target 'gap': it has 'y'"),
        ([], None, "cannot inspect no molecule"),
    ):
        with pytest.raises(InputError, match=message):
            inspect(make_predictor(), smiles, tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()


def test_numbers_count_invalid_molecules(make_predictor, tmp_path):
    result = inspect(make_predictor(), ["C(", "CO", "", "CO", "*C"], tmp_path)
    assert [one.number for one in result.found] == [2, 4]
    assert [(number, text) for number, text, _ in result.left_out] == [(1, "C("), (3, ""), (5, "*C")]
    assert set(pd.read_csv(tmp_path / "atoms.csv")["molecule"]) == {2, 4}
    assert {path.stem for path in tmp_path.glob("atoms-*.png")} == {"atoms-2", "atoms-4"}


def test_only_the_first_molecules_are_drawn(make_predictor, tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "MAX_DRAWN", 3)
    done = []
    result = inspect(make_predictor(), ["oops", *"CNOSF"], tmp_path, progress=done.append)
    assert [one.smiles for one in result.found] == list("CNO") and result.more and done == [1, 1, 1]
    assert not inspect(make_predictor(), ["oops", *"CNO", "oops"], tmp_path).more


def test_smiles_column_and_malformed_rows(make_predictor, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("id,structure text\n1,CCO\n2,CC,3\n3,C\n")
    with pytest.raises(InputError, match="which column holds the SMILES"):
        list(read_input_molecules(make_predictor(), [path]))
    with pytest.raises(InputError, match="no column 'structure'"):
        list(read_input_molecules(make_predictor(), [path], "structure"))
    molecules = list(read_input_molecules(make_predictor(), ["N", path, "O" * 300], "structure text"))
    assert [one.smiles for one in molecules] == ["N", "CCO", "CC", "C", "O" * 300]
    assert [bool(one.error) for one in molecules] == [False, False, True, False, False]
    result = inspect(make_predictor(), molecules[:4], tmp_path / "out")
    assert [one.number for one in result.found] == [1, 2, 4] and result.left_out[0][:2] == (3, "CC")
