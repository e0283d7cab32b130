"""What a check in another process answers when it ends early."""

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
def test_a_crash_is_an_answer_and_the_others_go_on(one_process):
    begun = []
    found = list(
        run_in_child(check, ["a", "killed", "ended", "b"], (2,), one_process=one_process, on_start=begun.append)
    )
    assert [(name, part) for name, part in found if not isinstance(part, ChildDied)] == [
        ("a", "aa"),
        ("a", "done"),
        ("killed", "killedkilled"),
        ("ended", "endedended"),
        ("b", "bb"),
        ("b", "done"),
    ]
    died = {name: str(part) for name, part in found if isinstance(part, ChildDied)}
    assert died == {"killed": "the process was ended by SIGSEGV", "ended": "the process ended with code 3"}
    assert begun == ["a", "killed", "ended", "b"]


def test_silence_is_an_answer(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 3.0)
    found = list(run_in_child(check, ["silent"], (1,), one_process=True))
    assert found[0] == ("silent", "silent") and str(found[1][1]).startswith("no answer in")
