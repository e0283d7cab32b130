import os
import re
import signal
import sys

import process_functions
import pytest

from graphslice.system.processes import in_processes


def test_each_call_runs_in_its_own_process(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    assert dict(in_processes(process_functions.note, {path: (path,) for path in paths}, jobs=2)) == dict.fromkeys(paths)
    processes = {int(path.read_text().split()[0]) for path in paths} | {os.getpid()}
    assert len(processes) == 3


def test_parallel_calls_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setattr("graphslice.system.machine._CPU_QUOTA", tmp_path / "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    list(in_processes(process_functions.note, {"a": (tmp_path / "a",)}, jobs=2))
    assert (tmp_path / "a").read_text().split()[1] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_every_call_sees_one_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    tasks = {path: (path,) for path in (tmp_path / "a", tmp_path / "b")}
    list(in_processes(process_functions.note, tasks, jobs=2, gpus=["2", "3"]))
    assert [path.read_text().split()[2] for path in tasks] == ["2", "3"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_reports_of_calls_arrive_before_they_end():
    reported = []
    tasks = {"a": (0.25, 0.5), "b": (0.75, 1.0)}
    calls = in_processes(
        process_functions.report_twice, tasks, 2, on_report=lambda key, values: reported.append((key, *values))
    )
    assert dict(calls) == {"a": None, "b": None}
    assert sorted(reported) == [("a", 0.25, "due"), ("a", 0.5, "due"), ("b", 0.75, "due"), ("b", 1.0, "due")]


def test_failed_call_does_not_stop_the_others():
    reasons = {"raise_input_error": "no such data", "raise_error": "ZeroDivisionError: a mixer", "finish": "None"}
    reasons["exit_with_7"] = "its process ended with exit code 7: .*if __name__"
    tasks = {name: (getattr(process_functions, name),) for name in reasons}
    found = dict(in_processes(process_functions.run, tasks, jobs=2))
    assert found.keys() == reasons.keys() and all(re.match(reasons[name], str(found[name])) for name in found)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("way", ["terminal", "terminate", "kill", "kill-background"])
def test_calls_end_with_their_parent_process(start_process, wait_for, wait_for_exit, way, tmp_path):
    """Ctrl-C in a terminal reaches the whole process group, the other signals only the parent."""
    sent = {"terminal": signal.SIGINT, "terminate": signal.SIGTERM}.get(way, signal.SIGKILL)
    process = start_process(sys.executable, process_functions.__file__, tmp_path, background=way == "kill-background")
    wait_for(process, tmp_path / "a", tmp_path / "b")
    (os.killpg if way == "terminal" else os.kill)(process.pid, sent)
    assert wait_for_exit(process) == (130 if sent == signal.SIGINT else -sent, "", "")
    # No call started afterwards, none was interrupted twice.
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
