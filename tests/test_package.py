"""What ``import graphslice`` offers."""

import graphslice


def test_public_names_are_listed_and_exist():
    assert set(dir(graphslice)) == set(graphslice.__all__)
    assert all(getattr(graphslice, name) is not None for name in graphslice.__all__)
