"""``gs.fit`` with atom-level targets."""

import pickle

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from tiny import TINY

import graphslice as gs
from graphslice.api.arguments import labelled_table
from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset

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


def test_lists_of_several_targets_are_columns_of_a_frame(frame):
    labels = frame.assign(double=frame.degree * 2)[["degree", "double"]]
    expected = {name: [each.tolist() for each in labels[name]] for name in labels}
    assert labelled_table(frame.smiles, labels, level="atom").select(labels).to_pydict() == expected


def test_labels_of_rdkit_molecules_are_rejected():
    """The SMILES of a molecule may have another order of atoms: that of OCC is CCO."""
    molecules = [Chem.MolFromSmiles(s) for s in ("OCC", "OCN", "N#CC")]
    columns = {"smiles": molecules, "z": [[atom.GetAtomicNum() for atom in mol.GetAtoms()] for mol in molecules]}
    table = pd.DataFrame(columns)
    for data in [*((each, table.z) for each in (molecules, table.smiles, table[["smiles"]])), columns, table]:
        with pytest.raises(gs.InputError, match="these are RDKit molecules"):
            gs.fit(data, level="atom", quiet=True)


def test_molecules_next_to_a_column_of_smiles_are_not_read(frame):
    both = frame.assign(ROMol=frame.smiles.map(Chem.MolFromSmiles))
    dataset = load_dataset(DataConfig(targets="degree", level="atom"), data=both)
    assert dataset.smiles == frame.smiles.tolist() and not dataset.faults
