"""``gs.fit`` with atom-level targets."""

import pickle

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from tiny import TINY

import graphslice as gs

CONFIG = {"model": TINY, "trainer": {"batch_size": 16, "accelerator": "cpu"}}


def degrees(smiles: str) -> list[float]:
    return [float(atom.GetDegree()) for atom in Chem.MolFromSmiles(smiles).GetAtoms()]


@pytest.fixture(scope="module")
def frame(demo_rows) -> pd.DataFrame:
    return pd.DataFrame({"smiles": demo_rows.smiles, "degree": [np.array(degrees(s)) for s in demo_rows.smiles]})


def test_fit_atom_level_targets(frame, tmp_path):
    model = gs.fit(frame, "degree", level="atom", epochs=2, config=CONFIG, quiet=True, out=tmp_path / "run")
    assert model.level == "atom" and model.describe()["level"] == "atom" and not model.describe()["trees"]
    predictions = model.predict(["CCO", "oops"])
    assert predictions[0].shape == (3, 1) and predictions[0].dtype == np.float32 and predictions[1].shape == (0, 1)
    assert model.metrics["test"]["atoms"] > 0
    assert model.evaluate(frame, split="all")["atoms"] == sum(map(len, frame.degree))
    assert model.evaluate()["mae"] == pytest.approx(model.metrics["test"]["mae"], rel=1e-3)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict("CCO")[0], predictions[0])
    with pytest.raises(gs.InputError, match="atom contributions require"):
        model.attribute("CCO")


def test_lists_of_equal_length_are_atom_labels():
    smiles = [f"{a}C{b}" for a in "CNOF" for b in ("C", "N", "O", "F", "Cl")]
    model = gs.fit((smiles, [[1, 2, 1]] * 10 + [(1, None, 2)] * 10), level="atom", epochs=1, config=CONFIG, quiet=True)
    assert model.targets == ["y"] and len(model.predict("CCO")[0]) == 3
