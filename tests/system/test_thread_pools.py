"""Threads for compiled kernels, without torch and with it."""

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
