from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem

import graphslice as gs
from graphslice.data.featurize import featurize
from graphslice.data.tables import open_table
from graphslice.errors import InputError
from graphslice.inference.files import predict_file
from graphslice.inference.predictor import Predictions, load
from graphslice.nn.mixers import MIXERS

# Symmetric, charged, of several fragments, of one atom, stereo, long.
MOLECULES = [
    "CCO", "c1ccccc1O", "[Na+].[Cl-]", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "CC(C)(C)c1ccc(cc1)S(=O)(=O)N",
    "C1CC2CCC1CC2", "O=C([O-])c1ccccc1.[K+]", "CCCCCCCCCCCCCCCC", "FC(F)(F)c1cc(ccc1Cl)NC(=O)Nc2ccncc2",
    "N#Cc1cc(C#N)cc(C#N)c1",
]  # fmt: skip


def respelled(smiles: str, seed: int) -> str:
    return Chem.MolToRandomSmilesVect(Chem.MolFromSmiles(smiles), 1, seed)[0]


# --- one promise: a prediction depends on the molecule alone ------------------------------------


@pytest.mark.parametrize("scale", [1.0, 8.0], ids=["untrained", "enlarged"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_neither_the_batch_nor_the_spelling_matters(mixer, scale, make_predictor, demo_smiles):
    model = make_predictor(scale, mixer=mixer, layers=2)
    molecules = MOLECULES + demo_smiles[:12]
    together = model.predict(molecules)[:, 0]
    spread = together.std()
    assert spread > 0 and np.isfinite(together).all()
    alone = np.array([model.predict(smiles)[0, 0] for smiles in molecules])
    assert np.abs(alone - together).max() < 1e-5 * spread
    other_company = model.predict([*molecules[::-1], "C" * 100])[-2::-1, 0]
    assert np.abs(other_company - together).max() < 1e-5 * spread
    for seed in (1, 2):
        spelled = [respelled(smiles, seed) for smiles in molecules]
        assert sum(a != b for a, b in zip(spelled, molecules, strict=True)) > 10
        assert np.abs(model.predict(spelled)[:, 0] - together).max() < 1e-5 * spread


# --- rows ---------------------------------------------------------------------------------------


def test_bad_rows_keep_their_places(predictor):
    molecules = ["CCO", "oops", "c1ccccc1", "", "C[N", None, "CCO"]
    result = predictor.predict(molecules, details=True)
    assert isinstance(result, Predictions) and result.targets == ["gap_ev"]
    assert result.values.shape == (7, 1) and result.values.dtype == np.float32
    bad = [1, 3, 4, 5]
    assert np.isnan(result.values[bad]).all() and np.isfinite(np.delete(result.values, bad)).all()
    assert [i for i, reason in enumerate(result.errors) if reason] == bad
    assert all(result.errors[i] for i in bad) and result.errors[3] == "empty SMILES"
    assert result.values[0] == pytest.approx(result.values[6], rel=1e-6)
    np.testing.assert_array_equal(predictor.predict(molecules), result.values)


def test_values_stand_in_the_rows_of_their_molecules(predictor):
    """Molecules of many sizes, which are batched by size."""
    molecules = ["C" * n + "O" for n in [30, 1, 12, 5, 44, 2, 9]]
    found = predictor.predict(molecules)[:, 0]
    assert found == pytest.approx([predictor.predict(smiles)[0, 0] for smiles in molecules], rel=1e-5)
    assert len(set(found.round(6))) == 7


@pytest.mark.parametrize(
    "molecules",
    [
        ("CCO", "C"),
        np.array(["CCO", "C"]),
        pd.Series(["CCO", "C"], index=[5, 3]),
        (smiles for smiles in ["CCO", "C"]),
        [gs.smiles_to_graph("CCO"), gs.smiles_to_graph("C")],
        [gs.smiles_to_graph("CCO").to_pyg(), "C"],
        iter([gs.smiles_to_graph("OCC"), gs.smiles_to_graph("C").to_pyg()]),
    ],
    ids=["tuple", "array", "series", "generator", "graphs", "mixed", "iterator"],
)
def test_molecules_of_every_kind(molecules, predictor):
    np.testing.assert_allclose(predictor.predict(molecules), predictor.predict(["CCO", "C"]), rtol=1e-6)


@pytest.mark.parametrize("one", ["CCO", gs.smiles_to_graph("CCO"), gs.smiles_to_graph("CCO").to_pyg()], ids=type)
def test_one_molecule(one, predictor):
    assert predictor.predict(one).shape == (1, 1)
    np.testing.assert_allclose(predictor.predict(one), predictor.predict(["CCO"]), rtol=1e-6)


def test_a_graph_of_no_use_is_a_bad_row(predictor):
    broken = gs.smiles_to_graph("CCO").to_pyg()
    broken.edge_attr = None
    result = predictor.predict([broken, gs.smiles_to_graph("C" * 600, max_atoms=600), "C"], details=True)
    assert "bond features" in result.errors[0] and "600 atoms" in result.errors[1] and result.errors[2] is None
    assert np.isnan(result.values[:2]).all() and np.isfinite(result.values[2]).all()


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_no_molecules(empty, make_predictor):
    result = make_predictor(targets=("a", "b")).predict(empty, details=True)
    assert result.values.shape == (0, 2) and result.values.dtype == np.float32 and result.errors == []


def test_several_targets(make_predictor):
    model = make_predictor(targets=("a", "b", "c"))
    result = model.predict(["CCO", "oops"], details=True)
    assert result.values.shape == (2, 3) and result.targets == ["a", "b", "c"]
    assert np.isfinite(result.values[0]).all() and np.isnan(result.values[1]).all()


def test_large_molecules(predictor):
    """500 atoms in one molecule, also beside a small one; one atom too many is said."""
    limit = predictor.config.graph.max_atoms
    result = predictor.predict(["C" * 500, "C", "C" * (limit + 1), "C" * limit], details=True)
    assert np.isfinite(result.values[[0, 1, 3]]).all() and np.isnan(result.values[2]).all()
    assert result.errors[2].startswith(f"{limit + 1} atoms, more than the limit of {limit}")
    assert result.values[0] == pytest.approx(predictor.predict("C" * 500)[0], rel=1e-4)


def test_an_answer_that_is_no_number_is_none(make_predictor):
    model = make_predictor(scale=1e30)
    result = model.predict(["CCO"], details=True)
    assert np.isnan(result.values).all() and result.errors == ["the model's answer is not a finite number"]


def test_predicting_twice_is_the_same(run_folder):
    molecules = MOLECULES * 3
    np.testing.assert_array_equal(load(run_folder).predict(molecules), load(run_folder).predict(molecules))


# --- files --------------------------------------------------------------------------------------


def test_a_file(predictor, tmp_path):
    table = pd.DataFrame({"id": ["007", "a,b", "x"], "smiles": ["CCO", "oops", "C"], "note": ["", 'q"', "two\nlines"]})
    table.to_csv(tmp_path / "in.csv", index=False)
    report = predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert (report.rows, report.failed) == (3, 1) and report.first_reason.startswith("not a possible molecule")
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert list(found) == ["id", "smiles", "note", "gap_ev_pred", "error"]
    assert pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)[list(table)].equals(table.astype(str))
    values = predictor.predict(table["smiles"])[:, 0]
    assert found["gap_ev_pred"].tolist()[1] == "" and found["error"].tolist()[::2] == ["", ""]
    assert [float(x) for x in found["gap_ev_pred"][::2]] == pytest.approx(values[::2].tolist(), rel=1e-6)
    assert found["error"][1] == report.first_reason


def test_a_file_is_streamed(predictor, tmp_path, monkeypatch):
    """Piece by piece, whatever the pieces are, in the order of the rows."""
    smiles = ["C" * (1 + n % 9) if n % 7 else "oops" for n in range(50)]
    pd.DataFrame({"n": range(50), "smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    monkeypatch.setattr("graphslice.inference.predictor.open_table", partial(open_table, rows=8))
    done = []
    report = predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.parquet", progress=done.append)
    assert done == [8] * 6 + [2] and (report.rows, report.failed) == (50, 8)
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["n"].tolist() == [str(n) for n in range(50)] and found["smiles"].tolist() == smiles
    np.testing.assert_allclose(found["gap_ev_pred"], predictor.predict(smiles)[:, 0], rtol=1e-5)
    assert (found["error"].notna() == (found["smiles"] == "oops")).all()


def test_a_long_file_is_read_in_pieces(predictor, tmp_path):
    (tmp_path / "in.smi").write_text("C\n" * 9_000)
    done = []
    report = predict_file(predictor, tmp_path / "in.smi", tmp_path / "out.csv", progress=done.append)
    assert report.rows == sum(done) == 9_000 and len(done) > 1 and report.failed == 0


@pytest.mark.parametrize("stops", [0, 2])
def test_written_whole_or_not_at_all(stops, predictor, tmp_path, monkeypatch):
    pd.DataFrame({"smiles": ["C"] * 50}).to_csv(tmp_path / "in.csv", index=False)
    (tmp_path / "out.csv").write_text("the old file")
    monkeypatch.setattr("graphslice.inference.predictor.open_table", partial(open_table, rows=8))

    def progress(rows: int) -> None:
        nonlocal stops
        stops -= 1
        if stops < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv", progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    assert (tmp_path / "out.csv").read_text() == "the old file"


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_the_output_is_the_input(link, predictor, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("smiles\nC\n")
    if link == "same":
        out = tmp_path / "." / "in.csv"
    elif link == "symlink":
        out.symlink_to(source)
    else:
        out.hardlink_to(source)
    with pytest.raises(InputError, match="is the input itself"):
        predict_file(predictor, source, out)
    assert source.read_text() == "smiles\nC\n"


@pytest.mark.parametrize("column", ["gap_ev_pred", "error"])
def test_a_column_that_would_be_there_twice(column, predictor, tmp_path):
    (tmp_path / "in.csv").write_text(f"smiles,{column}\nC,1\n")
    with pytest.raises(InputError, match=f"has a column '{column}' already"):
        predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.csv.gz", "in.parquet", "in.smi"])
def test_files_of_every_kind(name, predictor, tmp_path):
    table = pd.DataFrame({"smiles": ["CCO", "C"], "name": ["a", "b"]})
    if name.endswith("parquet"):
        table.to_parquet(tmp_path / name)
    else:
        table.to_csv(tmp_path / name, sep="," if "csv" in name else "\t", index=False, header="smi" not in name)
    predict_file(predictor, tmp_path / name, tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == ["smiles", "name", "gap_ev_pred", "error"] and found["name"].tolist() == ["a", "b"]
    np.testing.assert_allclose(found["gap_ev_pred"], predictor.predict(["CCO", "C"])[:, 0], rtol=1e-6)


def test_a_folder_of_shards(predictor, tmp_path, monkeypatch):
    """One table out, in the order of the shards' names, with their columns and types."""
    smiles = ["C" * (1 + n % 9) if n % 7 else "oops" for n in range(50)]
    table = pd.DataFrame({"n": range(50), "smiles": smiles})
    (tmp_path / "shards").mkdir()
    for name, rows in {"part-2": slice(31, None), "part-0": slice(0, 30), "part-1": slice(30, 31)}.items():
        table[rows].to_parquet(tmp_path / "shards" / f"{name}.parquet", index=False)
    (tmp_path / "shards" / "_SUCCESS").touch()
    monkeypatch.setattr("graphslice.inference.predictor.open_table", partial(open_table, rows=8))
    report = predict_file(predictor, tmp_path / "shards", tmp_path / "out.parquet")
    assert (report.rows, report.failed) == (50, 8)
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert list(found) == ["n", "smiles", "gap_ev_pred", "error"] and found[["n", "smiles"]].equals(table)
    np.testing.assert_allclose(found["gap_ev_pred"], predictor.predict(smiles)[:, 0], rtol=1e-5)


def test_shards_that_differ(predictor, tmp_path):
    """Known only on the way: still, nothing is written."""
    (tmp_path / "shards").mkdir()
    pd.DataFrame({"smiles": ["C"]}).to_parquet(tmp_path / "shards" / "a.parquet")
    pd.DataFrame({"smi": ["C"]}).to_parquet(tmp_path / "shards" / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet has the columns smi, and a\.parquet smiles"):
        predict_file(predictor, tmp_path / "shards", tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_shards_of_other_types(predictor, tmp_path):
    """Whole numbers in one, fractions in the next: the column holds both."""
    (tmp_path / "shards").mkdir()
    for name, value in {"a": 1, "b": 1.5}.items():
        pd.DataFrame({"smiles": ["C"], "n": [value]}).to_parquet(tmp_path / "shards" / f"{name}.parquet")
    predict_file(predictor, tmp_path / "shards", tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet")["n"].tolist() == [1.0, 1.5]


def test_the_first_of_two_columns_of_a_name(predictor, tmp_path):
    (tmp_path / "in.csv").write_text("smiles,smiles\nCCO,oops\n")
    predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("CCO,oops,")


def test_a_store_answers_as_its_smiles(predictor):
    smiles = [*MOLECULES, "oops", *MOLECULES[::-1]]
    store, reasons = featurize(smiles, predictor.config.graph)
    rows = np.array([3, 13, 0, 26, 3])
    found, expected = predictor.answers(store, rows), predictor.predict([smiles[i] for i in rows], details=True)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6)
    assert found.errors == expected.errors == [None, reasons[13], None, None, None] and reasons[13]


def test_the_given_column(predictor, tmp_path):
    (tmp_path / "in.csv").write_text("smiles,other\noops,CCO\n")
    predict_file(predictor, tmp_path / "in.csv", tmp_path / "out.csv", smiles_column="other")
    assert pd.read_csv(tmp_path / "out.csv")["gap_ev_pred"].notna().all()
