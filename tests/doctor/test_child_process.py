"""Results of checks in child processes that crash or hang."""

from __future__ import annotations

import os
import signal
import time

import pytest

from graphslice.doctor import child_process as module
from graphslice.doctor.child_process import ChildDied, run_in_child


def check(name, number):
    yield name * number
    if name == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "ended":
        os._exit(3)
    if name == "silent":
        time.sleep(60)
    yield "done"


@pytest.mark.parametrize("one_process", [True, False])
def test_crash_is_reported_and_other_checks_run(one_process):
    started = []
    results = list(
        run_in_child(check, ["a", "killed", "ended", "b"], (2,), one_process=one_process, on_start=started.append)
    )
    assert [(name, part) for name, part in results if not isinstance(part, ChildDied)] == [
        ("a", "aa"),
        ("a", "done"),
        ("killed", "killedkilled"),
        ("ended", "endedended"),
        ("b", "bb"),
        ("b", "done"),
    ]
    died = {name: str(part) for name, part in results if isinstance(part, ChildDied)}
    assert died == {"killed": "the process was killed by SIGSEGV", "ended": "the process exited with code 3"}
    assert started == ["a", "killed", "ended", "b"]


def test_timeout_is_reported(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 3.0)
    results = list(run_in_child(check, ["silent"], (1,), one_process=True))
    assert results[0] == ("silent", "silent") and str(results[1][1]).startswith("no result within")
