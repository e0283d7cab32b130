from __future__ import annotations

import inspect
import re

import pandas as pd
import pytest
from sklearn.base import clone

import graphslice as gs
from graphslice.api.keywords import name_keywords

FRAME = pd.DataFrame({"SMILES": ["C" * (1 + n) for n in range(20)], "Papp": [float(n) for n in range(20)]})


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [
        ("target", "(did you mean 'targets'?)"),
        ("epoch", "(did you mean 'epochs'?)"),
        ("max_epoch", "(did you mean 'epochs'?)"),
        ("loss", ": give config={'trainer': {'loss': ...}}"),
        ("carve", ": give config={'data': {'carve': ...}}"),
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
        ({"targets": "Papp", "split": "Scafold"}, "no column 'Scafold' (did you mean 'scaffold'?)"),
    ],
)
def test_fit_suggests_columns(arguments, expected):
    with pytest.raises(gs.InputError, match=re.escape(expected)):
        gs.fit(FRAME, **arguments, quiet=True)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "give --task 'a b=binary', or leave out --transform",
            "give data.task 'a b=binary', or leave out data.transform",
        ),
        ("name it with --smiles-column (--targets)", "name it with smiles (targets)"),
        ("leave out --trainer.devices.", "leave out trainer.devices."),
        ("lower --batch_size; --folds 5 evaluates", "lower trainer.batch_size; folds 5 evaluates"),
        ("graphslice train --resume a--b continues it", "graphslice train --resume a--b continues it"),
        ("give --jobs 2 -- or not", "give --jobs 2 -- or not"),
    ],
)
def test_options_become_keywords(message, expected):
    assert name_keywords(message, gs.fit) == expected


def test_errors_and_notes_name_keywords(capsys, tmp_path):
    with pytest.raises(gs.InputError, match="Name them with targets; the columns"):
        gs.fit(FRAME.assign(other=FRAME.Papp), quiet=True)
    words = FRAME.assign(Papp=[f"class {n // 2}" for n in range(20)])
    with pytest.raises(gs.InputError, match=r"give data\.task Papp=multiclass") as raised:
        gs.fit(words, "Papp", quiet=True)
    assert "--" not in str(raised.value)
    config = gs.RunConfig.from_dict({"data": {"transform": "exp"}})
    with pytest.raises(gs.InputError, match=r"^data\.transform cannot be 'exp'"):
        gs.train(config, tmp_path / "run")
    gs.fit("demo", "gap_ev", epochs=1, baselines=False, init_from="none", out=tmp_path / "run")
    error = capsys.readouterr().err
    assert ": standardize parent reads the largest" in error and "--" not in error
