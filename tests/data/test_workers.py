"""SMILES that crash or hang the process that reads them."""

from __future__ import annotations

import multiprocessing
import os
import time

import numpy as np
import pytest

from graphslice.chem.molecule import read_smiles
from graphslice.config import GraphConfig
from graphslice.data import featurize as pool
from graphslice.data.featurize import featurizer_pool, parse
from graphslice.data.store import GraphStore
from graphslice.errors import InputError
from graphslice.system import processes as processes_module

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="monkeypatching reaches only forked processes"
)
CRASH, NO_STEP_LIMIT = "[U][U]", "[Pu][Pu]"


@pytest.fixture
def deadly(monkeypatch):
    """Make one SMILES crash the process that reads it and another one hang; shorten the time limit."""

    def reading(read):
        def read_or_die(smiles, level, **settings):
            if CRASH in smiles:
                assert multiprocessing.parent_process() is not None
                os._exit(11)
            while NO_STEP_LIMIT in smiles:
                time.sleep(1)
            return read(smiles, level, **settings)

        return read_or_die

    monkeypatch.setattr(pool, "read_smiles", reading(pool.read_smiles))


@pytest.fixture
def deadly_rows(demo_smiles):
    smiles = demo_smiles[:1300]
    expected = GraphStore.from_arrays(parse(smiles, GraphConfig())[0])
    bad = {3: CRASH, 500: CRASH, 700: NO_STEP_LIMIT, 1299: CRASH}
    return [bad.get(row, text) for row, text in enumerate(smiles)], expected, bad


def test_crash_or_timeout_fails_only_its_row(deadly_rows, request):
    smiles, expected, bad = deadly_rows
    request.getfixturevalue("deadly")
    with featurizer_pool(workers=2, seconds=5) as processes:
        arrays, reasons, *_ = parse(smiles, GraphConfig(), processes)
        store, again = GraphStore.from_arrays(arrays), parse(smiles[10:400], GraphConfig(), processes)[0]
    messages = {CRASH: "RDKit crashed on this SMILES", NO_STEP_LIMIT: "RDKit took longer than 5 s"}
    assert {row: reason for row, reason in enumerate(reasons) if reason} == {
        r: messages[text] for r, text in bad.items()
    }
    others = [row for row in range(1300) if row not in bad]
    np.testing.assert_array_equal(store.sizes[others], expected.sizes[others])
    for row in (0, 4, 499, 501, 699, 701, 1023, 1298):
        np.testing.assert_array_equal(store[row].atoms, expected[row].atoms)
    np.testing.assert_array_equal(np.diff(again.atom_ptr), expected.sizes[10:400])


def test_predict_survives_a_crashing_row(deadly, cli, run_directory, tmp_path, demo_smiles, monkeypatch):
    monkeypatch.setattr(pool, "_TASK_ROWS", 16)
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("\n".join(["smiles", *demo_smiles[:99], CRASH, ""]))
    code, _, err = cli("predict", run_directory, table, "-o", out, "--workers", "2")
    assert code == 0 and "1 of 100" in err
    rows = out.read_text().splitlines()
    assert len(rows) == 101 and rows[-1].endswith("RDKit crashed on this SMILES")
    assert not any(row.endswith("crashed on this SMILES") for row in rows[:-1])


def test_atom_orders_survive_a_crashing_row(deadly, demo_smiles):
    with featurizer_pool(workers=2) as processes:
        arrays, reasons, order, _ = pool.parse([*demo_smiles[:600], CRASH], GraphConfig(), processes, level="atom")
    assert reasons[-1] == "RDKit crashed on this SMILES" and arrays.atom_bond_counts("atom")[-1] == -1
    np.testing.assert_array_equal(order, read_smiles(demo_smiles[:600], "atom")[2])


def test_processes_that_cannot_start_raise(monkeypatch):
    monkeypatch.setattr(processes_module, "_serve", lambda *_: os._exit(1))
    with featurizer_pool(workers=2) as processes, pytest.raises(InputError, match="--workers 1"):
        parse(["C"], GraphConfig(), processes)


def test_closing_the_pool_does_not_wait_for_a_hanging_row(deadly):
    with featurizer_pool(workers=2, seconds=1000) as processes:
        future = processes.submit(pool._parse_task, [NO_STEP_LIMIT])
    assert future.done()
