"""What the tests of featurizing share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphslice.data.featurize import build, pool


@pytest.fixture
def names() -> Callable[[Path], list[str]]:
    """``names(folder)``: what a folder shows of itself."""
    return lambda folder: sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def shards_of_four(monkeypatch):
    """Four rows a shard and a record batch."""
    monkeypatch.setattr("graphslice.data.store.BATCH_ROWS", 4)
    monkeypatch.setattr(build, "BATCH_ROWS", 4)


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """Every SMILES that is parsed in this process."""
    found: list[str] = []
    read = pool.read_smiles

    def listed(smiles, **settings):
        found.extend(smiles)
        return read(smiles, **settings)

    monkeypatch.setattr(pool, "read_smiles", listed)
    return found


@pytest.fixture
def no_parsing(monkeypatch) -> Callable[[], None]:
    """``no_parsing()``: from now on a SMILES that is parsed fails the test."""

    def fails(*_, **__):
        raise AssertionError("parsed again")

    return lambda: monkeypatch.setattr(pool, "read_smiles", fails)
