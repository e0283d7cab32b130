"""Fixtures of the tests of featurization."""

from collections.abc import Callable
from pathlib import Path

import pytest

from graphslice.data import featurize as pool
from graphslice.data import preprocess as build


@pytest.fixture
def names() -> Callable[[Path], list[str]]:
    """``names(folder)``: the names of the files in a folder, without hidden ones."""
    return lambda folder: sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def shards_of_four(monkeypatch):
    """Four rows per shard and per record batch."""
    monkeypatch.setattr("graphslice.data.store.BATCH_ROWS", 4)
    monkeypatch.setattr(build, "BATCH_ROWS", 4)
    monkeypatch.setattr("graphslice.data.dataset.BATCH_ROWS", 4)


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """List that collects every SMILES parsed in this process."""
    smiles_parsed: list[str] = []
    read = pool.read_smiles

    def read_and_list(smiles, level, **settings):
        smiles_parsed.extend(smiles)
        return read(smiles, level, **settings)

    monkeypatch.setattr(pool, "read_smiles", read_and_list)
    return smiles_parsed


@pytest.fixture
def no_parsing(monkeypatch) -> Callable[[], None]:
    """``no_parsing()``: from then on, parsing a SMILES fails the test."""

    def fails(*_, **__):
        raise AssertionError("parsed again")

    return lambda: monkeypatch.setattr(pool, "read_smiles", fails)
