"""The packaged models, evaluated on held-out molecules."""

import csv

import numpy as np
import pandas as pd
import pytest
from rdkit.Chem import MolFromSmiles
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.DataStructs import TanimotoSimilarity

import graphslice as gs
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.system.machine import DEMO_CSV, MODELS


@pytest.fixture(scope="module")
def held_out() -> pd.DataFrame:
    """Validation and test molecules of the demo dataset; none of them is in the training set of the models."""
    rows = pd.read_csv(DEMO_CSV)
    return rows[rows["split"] != "train"]


def test_packaged_models_are_small_and_list_their_elements():
    assert MODELS.keys() == {"small", "gap", "adme"}
    assert sum(path.stat().st_size for path in MODELS.values()) < 15e6
    elements = {name: read_checkpoint(name).extra["elements"] for name in MODELS}
    assert elements["small"][:2] == [0, 2]  # hydrogen and lithium; OGB counts from 0
    assert {5, 6, 7} < set(elements["gap"]) < set(elements["small"])


def test_gap_model_predicts_held_out_molecules(held_out):
    found = gs.load("gap", "cpu").predict(held_out["smiles"].tolist(), interval=90)
    gap = found.targets.index("gap")
    true, low, high = held_out["gap_ev"].to_numpy(), found.interval.low[:, gap], found.interval.high[:, gap]
    assert found.targets == ["gap", "homo", "lumo", "dipole"]
    assert np.abs(found.values[:, gap] - true).mean() < 0.25  # the median of the labels is wrong by 1.2
    assert 0.84 < ((low <= true) & (true <= high)).mean() < 0.96
    frontier = found.values[:, [found.targets.index(name) for name in ("lumo", "homo")]]
    assert np.abs(frontier @ [1, -1] - found.values[:, gap]).mean() < 0.15  # nothing but the labels ties them


def test_nearest_neighbours_have_smiles():
    gap = gs.load("gap", "cpu")
    near = gap.predict(["CC(=O)Oc1ccccc1C(=O)O", "oops"], nearest=True).neighbours
    name, none = near.nearest
    itself = gap.predict([name], nearest=True).neighbours
    assert none is None and near.similarity[0] < 1
    assert itself.similarity.tolist() == [1.0]  # of the few that share it the first is named
    asked, found = (
        GetMorganGenerator(2, fpSize=1024).GetFingerprint(MolFromSmiles(s)) for s in ("CC(=O)Oc1ccccc1C(=O)O", name)
    )
    assert abs(TanimotoSimilarity(asked, found) - near.similarity[0]) < 0.15  # other hashes, so near enough


def test_commands_accept_packaged_models_by_name(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("predict", "gap", "CCO", "oops", "--interval", "90")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0 and "1 of 2 rows have no prediction" in err
    assert 8 < float(rows[0]["gap_pred"]) < 14 and rows[1]["gap_pred"] == "" and rows[1]["error"]
    (tmp_path / "molecules.smi").write_text("CCO\nc1ccccc1\n")
    code, *_ = cli("fingerprint", "small", "molecules.smi", "-o", "embeddings.npy")
    assert code == 0 and np.load("embeddings.npy").shape == (2, 256)


def test_summary_prints_a_table_for_each_molecule(cli):
    code, out, err = cli("predict", "gap", "CCO", "oops", "--summary")
    assert code == 0 and "1 of 2 rows" in err
    first, second = out.strip().split("\n\n")
    assert "applicability domain" in first and "interval" in first and "dipole" in first
    assert second.startswith("oops: ")
    assert cli("predict", "gap", "oops", "--summary")[0] == 2
