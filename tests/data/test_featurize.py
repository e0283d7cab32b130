"""Parsing of SMILES in memory, in one process or several."""

from __future__ import annotations

import numpy as np
import pytest

from graphslice import smiles_to_graph
from graphslice.config import GraphConfig
from graphslice.data.featurize import featurize_stream, featurizer_pool, parse
from graphslice.data.store import GraphStore
from graphslice.errors import InputError

SMILES = ["CCO", "oops", "c1ccccc1O", "", "C", "[Na+].[Cl-]", "C" * 30, "N", "O", "CC(=O)O"]


def assert_rows(store: GraphStore, reasons: list[str | None], smiles: list[str], **settings) -> None:
    assert len(store) == len(reasons) == len(smiles)
    for row, text in enumerate(smiles):
        assert (reasons[row] is None) == (store.sizes[row] > 0)
        if reasons[row] is None:
            np.testing.assert_array_equal(store[row].atoms, smiles_to_graph(text, **settings).atoms)
    assert store.errors == {row: reason for row, reason in enumerate(reasons) if reason}


def test_stores_and_reasons_are_aligned_with_rows():
    store, reasons = next(featurize_stream([SMILES], GraphConfig(max_atoms=20)))
    assert_rows(store, reasons, SMILES)
    assert [row for row, reason in enumerate(reasons) if reason] == [1, 3, 6]
    assert reasons[3] == "empty SMILES" and reasons[6].startswith("30 atoms")
    store, reasons = next(featurize_stream([["OCC", "x"]], GraphConfig(atom_order="input")))
    assert_rows(store, reasons, ["OCC", "x"], atom_order="input")


def test_empty_input_gives_an_empty_store():
    store, reasons = next(featurize_stream([[]], GraphConfig()))
    assert len(store) == 0 and reasons == []


@pytest.fixture(scope="module")
def many(demo_smiles):
    smiles = demo_smiles[:1100]
    smiles[::50] = ["oops"] * len(smiles[::50])
    return smiles


@pytest.mark.parametrize("workers", [1, 2])
def test_parallel_matches_serial(workers, many):
    """1100 rows are two full tasks of 512 and a rest."""
    expected, expected_reasons = next(featurize_stream([many], GraphConfig()))
    with featurizer_pool(workers=workers) as pool:
        assert (pool is None) == (workers == 1)
        store, reasons = next(featurize_stream([many], GraphConfig(), pool=pool))
        streamed = list(featurize_stream([many[:3], [], many[3:700]], GraphConfig(), pool=pool))
    assert reasons == expected_reasons
    np.testing.assert_array_equal(store.data, expected.data)
    assert [len(part) for part, _ in streamed] == [3, 0, 697]
    assert [reason for _, reasons in streamed for reason in reasons] == expected_reasons[:700]
    np.testing.assert_array_equal(np.concatenate([part.sizes for part, _ in streamed]), expected.sizes[:700])


def test_progress_sums_to_the_number_of_rows(many):
    done: list[int] = []
    parse(many, GraphConfig(), progress=done.append)
    assert sum(done) == 1100 and len(done) == 3


def test_few_rows_start_no_processes():
    with featurizer_pool(rows=100, workers=2) as pool:
        assert pool is None


def test_closing_a_stream_cancels_its_tasks(many):
    with featurizer_pool(workers=2) as pool:
        stream = featurize_stream(([text] * 600 for text in many), GraphConfig(), pool=pool)
        assert len(next(stream)[0]) == 600
        stream.close()
        assert len(next(featurize_stream([["C"]], GraphConfig(), pool=pool))[0]) == 1


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_than_one_worker_raises(workers):
    with (
        pytest.raises(InputError, match=f"--workers must be at least 1, not {workers}"),
        featurizer_pool(workers=workers),
    ):
        pass
