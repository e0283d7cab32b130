"""Results of checks in child processes that crash or hang."""

from __future__ import annotations

import os
import signal
import time

import pytest

from graphslice.doctor import diagnosis as module
from graphslice.doctor.diagnosis import run_in_child

NAMES = ["a", "killed", "ended", "raises", "b"]


def check(name, number):
    yield name * number
    if name == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "ended":
        os._exit(3)
    if name == "silent":
        time.sleep(60)
    if name == "raises":
        raise ValueError("wrong")
    yield "done"


@pytest.mark.parametrize("one_process", [True, False])
def test_crash_is_reported_and_other_checks_run(one_process):
    started = []
    results = list(
        run_in_child(
            check, ["a", "killed", "ended", "raises", "b"], (2,), one_process=one_process, on_start=started.append
        )
    )
    assert [(name, part) for name, part in results if not isinstance(part, Exception)] == [
        ("a", "aa"),
        ("a", "done"),
        ("killed", "killedkilled"),
        ("ended", "endedended"),
        ("raises", "raisesraises"),
        ("b", "bb"),
        ("b", "done"),
    ]
    died = {name: str(part) for name, part in results if isinstance(part, Exception)}
    ends = {"killed": "the process was killed by SIGSEGV", "ended": "the process exited with code 3"}
    assert died == ends | {"raises": "wrong"}
    assert started == NAMES


def test_timeout_is_reported(monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 3.0)
    results = list(run_in_child(check, ["silent"], (1,), one_process=True))
    assert results[0] == ("silent", "silent") and str(results[1][1]) == "no result within 3 s"
