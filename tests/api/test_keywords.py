from __future__ import annotations

import inspect
import re

import pandas as pd
import pytest
from sklearn.base import clone

import graphslice as gs

FRAME = pd.DataFrame({"SMILES": ["C" * (1 + n) for n in range(20)], "Papp": [float(n) for n in range(20)]})


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [
        ("target", "(did you mean 'targets'?)"),
        ("epoch", "(did you mean 'epochs'?)"),
        ("max_epoch", "(did you mean 'epochs'?)"),
        ("loss", ": give config={'trainer': {'loss': ...}}"),
        ("duplicates", ": give config={'data': {'duplicates': ...}}"),
        ("xyzzy", ""),
    ],
)
def test_fit_suggests_keywords(keyword, expected):
    message = f"fit() got an unexpected keyword argument {keyword!r}{' ' if expected[:1] == '(' else ''}{expected}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        gs.fit(FRAME, **{keyword: 1})


@pytest.mark.parametrize("kind", [gs.GraphSliceRegressor, gs.GraphSliceClassifier])
def test_estimators_suggest_keywords(kind):
    with pytest.raises(TypeError, match=r"'random_seed' \(did you mean 'random_state'\?\)"):
        kind(random_seed=1)
    with pytest.raises(TypeError, match=r"'batch_size': give config=\{'trainer': \{'batch_size': ...\}\}"):
        kind(batch_size=1)
    assert clone(kind(epochs=3)).get_params()["epochs"] == 3
    assert "epochs" in inspect.signature(kind).parameters


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"targets": "papp"}, "no column 'papp' (did you mean 'Papp'?)"),
        ({"targets": "Papp", "smiles": "smile"}, "no column 'smile' (did you mean 'SMILES'?)"),
        ({"targets": "Papp", "features": "rdkit"}, "no column 'rdkit' (did you mean 'rdkit2d'?)"),
        ({"targets": "Papp", "weights": "pap"}, "no column 'pap' (did you mean 'Papp'?)"),
        ({"targets": "Papp", "split": "Scafold"}, "unknown split 'Scafold' (did you mean 'scaffold'?)"),
    ],
)
def test_fit_suggests_columns(arguments, expected):
    with pytest.raises(gs.InputError, match=re.escape(expected)):
        gs.fit(FRAME, **arguments, quiet=True)
