"""What ``import graphslice`` offers."""

import pickle

import graphslice


def test_public_names_are_listed_and_exist():
    assert set(dir(graphslice)) == set(graphslice.__all__)
    assert all(getattr(graphslice, name) is not None for name in graphslice.__all__)


def test_package_can_be_pickled():
    """As cloudpickle (joblib, Dask, Ray) does with a function that uses it."""
    assert pickle.loads(pickle.dumps(graphslice)) is graphslice
