"""SMILES that crash or hang the process that reads them."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import graphslice as gs
from graphslice.chem import MoleculeError, smiles_to_graph, workers
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
    """Make one SMILES crash the process that reads it and another one hang."""

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
    with featurizer_pool(workers=2) as processes:
        arrays, reasons, *_ = parse(smiles, GraphConfig(), processes)
        store, again = GraphStore.from_arrays(arrays), parse(smiles[10:400], GraphConfig(), processes)[0]
    messages = {CRASH: "RDKit crashed on this molecule", NO_STEP_LIMIT: "RDKit took longer than 5 s"}
    assert {row: reason for row, reason in enumerate(reasons) if reason} == {
        r: messages[text] for r, text in bad.items()
    }
    others = [row for row in range(1300) if row not in bad]
    np.testing.assert_array_equal(store.sizes[others], expected.sizes[others])
    for row in (0, 4, 499, 501, 699, 701, 1023, 1298):
        np.testing.assert_array_equal(store[row].atoms, expected[row].atoms)
    np.testing.assert_array_equal(np.diff(again.atom_ptr), expected.sizes[10:400])


def test_a_process_that_is_killed_between_two_tasks_costs_no_row():
    with featurizer_pool(workers=2) as processes:
        parse(["C"], GraphConfig(), processes)
        for process in multiprocessing.active_children():
            process.kill()  # as the kernel does when memory is short
        assert parse(["CC"], GraphConfig(), processes)[1] == [None]


def test_processes_that_cannot_start_raise(monkeypatch):
    monkeypatch.setattr(processes_module, "_serve", lambda *_: os._exit(1))
    with featurizer_pool(workers=2) as processes, pytest.raises(InputError, match="--workers 1"):
        parse(["C"], GraphConfig(), processes)


def test_closing_the_pool_does_not_wait_for_a_hanging_row(deadly, monkeypatch):
    monkeypatch.setattr(workers, "ROW_SECONDS", 1000)
    with featurizer_pool(workers=2) as processes:
        future = processes.submit(pool._parse_task, [NO_STEP_LIMIT])
    assert future.done()


# A ring over 26 rings, as in cycloamyloses, is 2^26 rings for RDKit.
SLOW = "O%10" + "C1CCC(CC1)O" * 26 + "%10"
DENSE = ".".join(
    "[U]" + "".join(f"%({1 + (30 * i + j if left else 30 * j + i)})" for j in range(30))
    for left in (True, False)
    for i in range(30)
)


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(workers, "ROW_SECONDS", 0.5)
    return "RDKit took longer than 0.5 s"


def test_tasks_have_every_row_in_order_and_intricate_ones_alone(demo_smiles):
    fullerene = "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c%11c2"
    rows = [SLOW, *demo_smiles[:20], fullerene, "C" * 600, *demo_smiles[20:26], SLOW]
    parts = [list(part) for part in workers.tasks(rows, 8)]
    assert [text for part in parts for text in part] == rows and [len(part) for part in parts] == [
        1,
        8,
        8,
        4,
        1,
        1,
        6,
        1,
    ]
    assert list(workers.tasks([], 8)) == []


@pytest.mark.parametrize("smiles", [SLOW, DENSE])
def test_a_slow_molecule_is_an_error_of_smiles_to_graph(smiles, short_limit):
    with pytest.raises(MoleculeError, match=r"^RDKit (took longer than 0\.5 s|crashed on this molecule)$"):
        smiles_to_graph(smiles)


def test_a_slow_molecule_costs_its_row_in_python_and_in_a_file(short_limit, cli, run_directory, tmp_path):
    predictions = gs.load(run_directory, "cpu").predict(["CCO", SLOW, "CCN"], details=True)
    assert predictions.errors == [None, short_limit, None]
    code, out, _ = cli("predict", run_directory, "CCO", SLOW, "CCN", "--workers", "2")
    assert code == 0 and [row.endswith(short_limit) for row in out.splitlines()] == [False, False, True, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_predict_during_a_slow_molecule(number, run_directory, start):
    process = start("predict", run_directory, SLOW)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not children.read_text().split() and time.monotonic() < deadline:  # the process that reads it
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == (143 if number == signal.SIGTERM else 130)
