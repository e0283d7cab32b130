"""Threads for compiled kernels: without torch, with it, and in processes that were forked after they were used."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from graphslice.system import machine as hardware
from graphslice.system import threads


def test_number_of_cores_without_torch():
    code = (
        "import os, sys; from graphslice.system.threads import cores\n"
        "for os.environ['OMP_NUM_THREADS'] in ('3', '', 'many', '0'): print(cores())\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", *[str(hardware.cores())] * 3, "False"]


def test_number_of_cores_is_that_of_torch():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(5)
        assert threads.cores() == 5
    finally:
        torch.set_num_threads(before)


def test_tasks_run_on_one_core_each(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = threads.map_one_core_each(lambda item: (item, threads.cores(), threading.current_thread().name), [3, 1, 2])
    assert [item for item, _, _ in found] == [3, 1, 2] and {cores for _, cores, _ in found} == {1}
    assert all("one-core" in name for _, _, name in found) and threads.cores() == 2


def test_a_single_task_runs_on_all_cores(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert threads.map_one_core_each(lambda _: threads.cores(), [0]) == [2]
    assert threads.map_one_core_each(lambda _: threads.cores(), []) == []


@pytest.mark.parametrize("values", [0, 1 << 30])
def test_kernels_get_all_rows_once(values, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    seen = []
    threads.parallel_for(lambda begin, end: seen.extend(range(begin, end)), 10, values)
    assert sorted(seen) == list(range(10))


SCRIPT = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import torch
import graphslice

torch.set_num_threads(2)
model, smiles = graphslice.load(sys.argv[1], "cpu"), ["CCO", "c1ccccc1O", "CC(=O)O"] * 80
matrix = torch.ones(1500, 1500)

def predict(smiles):
    graphslice.load(sys.argv[1], "cpu")
    return model.predict(smiles).tolist(), float((matrix @ matrix).exp().isinf().sum())

def in_fork(smiles):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, repr(predict(smiles)).encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    with open(reader) as file:
        return eval(file.read())

def in_executor(smiles):
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(predict, smiles).result()

expected = predict(smiles)
for way in (in_fork, in_executor):
    assert way(smiles) == expected, way
    assert way(smiles) == expected == predict(smiles), way
print("equal")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_forked_after_a_prediction_predicts_the_same(start_process, wait_for_exit):
    code, out, err = wait_for_exit(start_process(sys.executable, "-c", SCRIPT, "gap"))
    assert (code, out) == (0, "equal\n"), err
