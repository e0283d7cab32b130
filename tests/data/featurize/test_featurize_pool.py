"""SMILES to molecules in memory, in this process or several."""

from __future__ import annotations

import numpy as np
import pytest

from graphslice import smiles_to_graph
from graphslice.config import GraphConfig
from graphslice.data.featurize import featurize, featurize_stream, featurizer_pool
from graphslice.data.store import GraphStore
from graphslice.errors import InputError

SMILES = ["CCO", "oops", "c1ccccc1O", "", "C", "[Na+].[Cl-]", "C" * 30, "N", "O", "CC(=O)O"]


def assert_rows(found: GraphStore, reasons: list[str | None], smiles: list[str], **settings) -> None:
    assert len(found) == len(reasons) == len(smiles)
    for row, text in enumerate(smiles):
        assert (reasons[row] is None) == (found.sizes[row] > 0)
        if reasons[row] is None:
            np.testing.assert_array_equal(found[row].atoms, smiles_to_graph(text, **settings).atoms)
    assert found.errors == {row: reason for row, reason in enumerate(reasons) if reason}


def test_rows_and_reasons_are_aligned():
    found, reasons = featurize(SMILES, GraphConfig(max_atoms=20))
    assert_rows(found, reasons, SMILES)
    assert [row for row, reason in enumerate(reasons) if reason] == [1, 3, 6]
    assert reasons[3] == "empty SMILES" and reasons[6].startswith("30 atoms")
    found, reasons = featurize(["OCC", "x"], GraphConfig(atom_order="input"))
    assert_rows(found, reasons, ["OCC", "x"], atom_order="input")


def test_nothing():
    found, reasons = featurize([], GraphConfig())
    assert len(found) == 0 and reasons == []


@pytest.fixture(scope="module")
def many(demo_smiles):
    smiles = demo_smiles[:1100]
    smiles[::50] = ["oops"] * len(smiles[::50])
    return smiles


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_matter(workers, many):
    """Chunks of 512 and a rest, from one process or several."""
    expected, expected_reasons = featurize(many, GraphConfig())
    with featurizer_pool(workers=workers) as pool:
        assert (pool is None) == (workers == 1)
        found, reasons = featurize(many, GraphConfig(), pool=pool)
        streamed = list(featurize_stream([many[:3], [], many[3:700]], GraphConfig(), pool=pool))
    assert reasons == expected_reasons
    np.testing.assert_array_equal(found.data, expected.data)
    assert [len(part) for part, _ in streamed] == [3, 0, 697]
    assert [reason for _, reasons in streamed for reason in reasons] == expected_reasons[:700]
    np.testing.assert_array_equal(np.concatenate([part.sizes for part, _ in streamed]), expected.sizes[:700])


def test_progress_counts_every_row(many):
    done: list[int] = []
    featurize(many, GraphConfig(), progress=done.append)
    assert sum(done) == 1100 and len(done) == 3


def test_few_rows_need_no_processes():
    with featurizer_pool(rows=100, workers=2) as pool:
        assert pool is None


def test_leaving_a_stream_early_ends_its_work(many):
    with featurizer_pool(workers=2) as pool:
        stream = featurize_stream(([text] * 600 for text in many), GraphConfig(), pool=pool)
        assert len(next(stream)[0]) == 600
        stream.close()
        assert len(featurize(["C"], GraphConfig(), pool=pool)[0]) == 1


@pytest.mark.parametrize("workers", [0, -1])
def test_too_few_workers(workers):
    with (
        pytest.raises(InputError, match=f"--workers must be at least 1, not {workers}"),
        featurizer_pool(workers=workers),
    ):
        pass
