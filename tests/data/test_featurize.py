"""Parsing of SMILES in memory, in one process or several."""

import multiprocessing
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from graphslice import smiles_to_graph
from graphslice.config import GraphConfig
from graphslice.data.columns import TableColumns
from graphslice.data.featurize import Pool, featurize_rows, featurizer_pool, parse
from graphslice.data.store import GraphStore
from graphslice.data.tables import Rows
from graphslice.errors import InputError

SMILES = ["CCO", "oops", "c1ccccc1O", "", "C", "[Na+].[Cl-]", "C" * 30, "N", "O", "CC(=O)O"]


def featurize(chunks: Iterable[list[str]], pool: Pool = None, **settings) -> Iterator[tuple[Rows, GraphStore]]:
    return featurize_rows(map(Rows.of_smiles, chunks), TableColumns("smiles"), GraphConfig(**settings), pool=pool)


@pytest.mark.parametrize("order", ["canonical", "input"])
def test_molecules_and_faults_are_aligned_with_rows(order):
    rows = Rows.of_smiles(SMILES)
    rows.faults[9] = "malformed"
    ((found, store),) = featurize_rows([rows], TableColumns("smiles"), GraphConfig(max_atoms=20, atom_order=order))
    assert store.errors == found.faults and found.table is rows.table and len(store) == len(SMILES)
    assert sorted(found.faults) == np.flatnonzero(store.sizes == 0).tolist() == [1, 3, 6, 9]
    assert found.faults[3] == "empty SMILES" and found.faults[6].startswith("30 atoms")
    assert found.faults[9] == "malformed"
    for row in np.flatnonzero(store.sizes).tolist():
        np.testing.assert_array_equal(store[row].atoms, smiles_to_graph(SMILES[row], atom_order=order).atoms)


@pytest.fixture(scope="module")
def many(demo_smiles):
    smiles = demo_smiles[:1100]
    smiles[::50] = ["oops"] * len(smiles[::50])
    return smiles


@pytest.mark.parametrize("workers", [1, 2])
def test_parallel_matches_serial(workers, many):
    """1100 rows are two full tasks of 512 and a rest."""
    ((expected_rows, expected),) = featurize([many])
    with featurizer_pool(workers=workers) as pool:
        ((rows, store),) = featurize([many], pool)
        streamed = list(featurize([many[:3], [], many[3:700]], pool))
    assert rows.errors == expected_rows.errors
    np.testing.assert_array_equal(store.data, expected.data)
    assert [len(part) for _, part in streamed] == [3, 0, 697]
    assert [error for part, _ in streamed for error in part.errors] == rows.errors[:700]
    np.testing.assert_array_equal(np.concatenate([part.sizes for _, part in streamed]), expected.sizes[:700])


def test_progress_and_number_of_workers(many):
    done: list[int] = []
    parse(many, GraphConfig(), progress=done.append)
    assert sum(done) == 1100 and len(done) == 3
    with featurizer_pool(rows=100, workers=2) as pool:
        pool.submit(list, ["CCO"]).result()
        assert not multiprocessing.active_children()  # few rows start no processes
    with pytest.raises(InputError, match="--workers must be at least 1, not 0"), featurizer_pool(workers=0):
        pass


def test_closing_a_stream_cancels_its_tasks(many):
    with featurizer_pool(workers=2) as pool:
        stream = featurize(([text] * 600 for text in many), pool)
        assert len(next(stream)[0]) == 600
        stream.close()
        assert len(next(featurize([["C"]], pool))[0]) == 1
