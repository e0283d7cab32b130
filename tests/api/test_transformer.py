"""The scikit-learn transformer of SMILES to embeddings."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import graphslice as gs
from graphslice.api.model import Model
from graphslice.errors import InputError

SMILES = ["CCO", "c1ccccc1O", "CC(=O)O", "[Na+].[Cl-]", "C", "CCN", "CCCl", "OCCO"]
LABELS = np.arange(8.0)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return gs.load("small", "cpu").embed(SMILES)


@pytest.mark.parametrize("X", [SMILES, pd.DataFrame({"name": LABELS, "smiles": SMILES})], ids=["list", "table"])
def test_embeddings_equal_those_of_the_model(X, expected):
    found = gs.GraphSliceTransformer(device="cpu").fit_transform(X)
    assert found.dtype == np.float32 and np.isfinite(found).all()
    np.testing.assert_array_equal(found, expected)


def test_transform_needs_no_fit_and_ignores_labels(expected):
    with pytest.raises(NotFittedError, match="not fitted yet"):  # it loads no model
        gs.GraphSliceTransformer().get_feature_names_out()
    np.testing.assert_array_equal(gs.GraphSliceTransformer(device="cpu").transform(SMILES), expected)
    np.testing.assert_array_equal(gs.GraphSliceTransformer(device="cpu").fit_transform(SMILES, LABELS), expected)


def test_set_output_gives_named_columns_and_keeps_the_index(expected):
    series = pd.Series(SMILES, index=list("hgfedcba"))
    transformer = gs.GraphSliceTransformer(device="cpu").set_output(transform="pandas")
    frame = transformer.fit_transform(series)
    assert frame.index.tolist() == list("hgfedcba")
    assert frame.columns.tolist() == transformer.get_feature_names_out().tolist()
    assert frame.columns[[0, -1]].tolist() == ["embedding_0", "embedding_255"]
    np.testing.assert_array_equal(frame.to_numpy(), expected)


def test_invalid_molecules_are_rejected_by_their_row_or_nan(expected):
    bad = [SMILES[0], "C[N", None]
    with pytest.raises(ValueError, match=r"row 1 of X has no embedding: not a valid SMILES.*; invalid='nan' gives"):
        gs.GraphSliceTransformer(device="cpu").fit(bad).transform(bad)
    found = gs.GraphSliceTransformer(device="cpu", invalid="nan").fit_transform(bad)
    np.testing.assert_array_equal(found[0], expected[0])
    assert np.isnan(found[1:]).all()


def test_a_model_and_a_run_directory_are_accepted(run_directory):
    model = gs.load(run_directory)
    found = gs.GraphSliceTransformer(model).fit_transform(SMILES)
    np.testing.assert_array_equal(found, model.embed(SMILES))
    np.testing.assert_array_equal(gs.GraphSliceTransformer(str(run_directory)).fit_transform(SMILES), found)
    np.testing.assert_array_equal(clone(gs.GraphSliceTransformer(model)).fit_transform(SMILES), found)


def test_unusable_input_is_rejected():
    for transformer, X, words in [
        (gs.GraphSliceTransformer(), [], "no molecules"),
        (gs.GraphSliceTransformer(invalid="drop"), SMILES, "invalid must be raise or nan, not 'drop'"),
    ]:
        with pytest.raises(InputError, match=words):
            transformer.fit(X)


def test_column_of_the_training_is_read_among_others(make_predictor):
    (checkpoint,) = make_predictor().checkpoints
    checkpoint.config.data.smiles_column = "cpd"
    frame = pd.DataFrame({"cpd": ["CCO", "CCN"], "ph": [7.0, 5.0]})
    model = Model(checkpoint, "cpu")
    np.testing.assert_array_equal(gs.GraphSliceTransformer(model).fit_transform(frame), model.embed(frame))
