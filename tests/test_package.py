"""What ``import graphslice`` offers."""

import pickle

import pytest

import graphslice


def test_public_names_are_listed_and_exist():
    assert set(dir(graphslice)) == set(graphslice.__all__)
    assert all(getattr(graphslice, name) is not None for name in graphslice.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        graphslice.fitt  # noqa: B018


def test_functions_that_refer_to_the_package_can_be_pickled():
    """By cloudpickle, as joblib, Dask and Ray do."""
    cloudpickle = pytest.importorskip("cloudpickle")

    def atoms() -> int:
        return graphslice.smiles_to_graph("CCO").num_atoms

    assert pickle.loads(cloudpickle.dumps(atoms))() == 3
