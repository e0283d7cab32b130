"""Runs with standardized molecules: training, checkpoints, preprocessed datasets, predictions and explanations."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import graphslice as gs
from graphslice.config import RunConfig
from graphslice.data.columns import TableColumns
from graphslice.data.loaders import load_dataset
from graphslice.data.tables import Rows
from graphslice.errors import InputError
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.training import train
from graphslice.training.resolve import resolve

ACID, SALT, ION = "CC(=O)O", "CC(=O)[O-].[Na+]", "CC(=O)[O-]"


@pytest.fixture(scope="module")
def table(demo_rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("salts") / "t.csv"
    rows = demo_rows.copy()
    rows.loc[:2, "smiles"] = [ACID, "C[NH3+].[Cl-]", SALT]
    rows.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table, tiny_config, tmp_path_factory):
    """A finished run on parents with descriptors, and what it printed."""
    out, stream = tmp_path_factory.mktemp("run") / "run", io.StringIO()
    settings = {"data": {"targets": "gap_ev", "features": "rdkit2d"}, "graph": {"standardize": "parent"}}
    train(tiny_config(table, **settings), out, console=Console(file=stream, width=400))
    return out, stream.getvalue()


def test_salt_ion_and_acid_have_the_same_prediction(run):
    folder, printed = run
    assert "2 rows of 1 molecule are duplicates, 1 molecule with conflicting labels" in printed
    assert read_checkpoint(folder).config.graph.standardize == "parent"
    predictor = gs.load(folder, "cpu")
    found = predictor.predict([ACID, SALT, ION, "CC"])[:, 0]
    assert found[0] == found[1] == found[2] != found[3]
    rows = Rows.of_smiles([ACID, SALT, ION])
    ((_, store),) = predictor.featurize_rows([rows], TableColumns("smiles"))
    np.testing.assert_allclose(predictor.predict_featurized(store).values[:, 0], found[:1].repeat(3), rtol=1e-6)


def test_predictions_show_the_molecules_as_written_and_reasons_by_row(run, cli, tmp_path):
    folder, _ = run
    pd.DataFrame({"smiles": [SALT, "C[N+", "C.*", ACID]}).to_csv(tmp_path / "in.csv", index=False)
    code, *_ = cli("predict", folder, tmp_path / "in.csv", "-o", tmp_path / "out.csv", "--device", "cpu")
    found = pd.read_csv(tmp_path / "out.csv")
    assert code == 0 and found["smiles"].tolist() == [SALT, "C[N+", "C.*", ACID]
    assert found["error"].fillna("").tolist() == [
        "",
        "not a valid SMILES: syntax error at character 4",
        "a wildcard atom (*) has no element",
        "",
    ]
    assert found["gap_ev_pred"][0] == found["gap_ev_pred"][3]


def test_explanations_need_the_parent(run):
    predictor = gs.load(run[0], "cpu")
    assert len(predictor.attribute(ACID, orders=4)) == 4
    with pytest.raises(InputError, match=r"the model reads its parent compound: give CC\(=O\)O instead"):
        predictor.attribute(SALT, orders=4)


def test_preprocessed_datasets_know_their_standardization(run, table, cli, tmp_path):
    for name, options in (("none", []), ("parent", ["--standardize", "parent"])):
        arguments = ["featurize", table, "-o", tmp_path / f"{name}.arrow", "--targets", "gap_ev", "--workers", 1]
        assert cli(*arguments, "--features", "rdkit2d", *options)[0] == 0
    expected = gs.load(run[0], "cpu").predict(pd.read_csv(table)["smiles"])[:, 0]
    for name in ("none", "parent"):  # molecules of the first are parsed again
        file, out = tmp_path / f"{name}.arrow", tmp_path / f"{name}.csv"
        assert cli("predict", run[0], file, "-o", out, "--device", "cpu")[0] == 0
        found = pd.read_csv(out)
        np.testing.assert_allclose(found["gap_ev_pred"], expected, rtol=1e-5)
        assert found["smiles"].tolist() == pd.read_csv(table)["smiles"].tolist()
    code, _, err = cli("train", "--dataset", tmp_path / "none.arrow", "--standardize", "parent", "-o", tmp_path / "run")
    assert code == 2 and "graph.standardize parent" in err and not (tmp_path / "run" / "config.yaml").exists()


def test_default_initialisation_is_kept(table, tmp_path):
    """The packaged model was not trained on parents only, but has the same architecture."""
    config = RunConfig.preset("small").with_options({"data.dataset": str(table), "graph.standardize": "parent"})
    complete, _ = resolve(config, load_dataset(config.data), tmp_path, Console(quiet=True))
    assert complete.config.origin == "small" and complete.config.graph.standardize == "parent"
