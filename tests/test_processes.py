from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import calls
import pytest

import graphslice
from graphslice.processes import in_processes, least_used_gpu


def test_each_call_has_a_process_of_its_own(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    assert dict(in_processes(calls.note, {path: (path,) for path in paths}, jobs=2)) == dict.fromkeys(paths)
    processes = {int(path.read_text().split()[0]) for path in paths} | {os.getpid()}
    assert len(processes) == 3


def test_calls_at_the_same_time_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    list(in_processes(calls.note, {"a": (tmp_path / "a",)}, jobs=2))
    assert (tmp_path / "a").read_text().split()[1] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_every_call_sees_one_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    tasks = {path: (path,) for path in (tmp_path / "a", tmp_path / "b")}
    list(in_processes(calls.note, tasks, jobs=2, gpus=["2", "3"]))
    assert [path.read_text().split()[2] for path in tasks] == ["2", "3"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


@pytest.mark.parametrize(
    ("gpus", "taken", "expected"),
    [("", [], None), ("ab", [], "a"), ("ab", ["a"], "b"), ("ab", ["b"], "a"), ("abc", ["c", "a", "b", "a", "c"], "b")],
)
def test_the_gpu_of_the_fewest_calls(gpus, taken, expected):
    assert least_used_gpu(list(gpus), taken) == expected


def test_a_call_that_fails_does_not_stop_the_others():
    functions = [calls.refuse, calls.fail, calls.die, calls.finish]
    assert dict(in_processes(calls.run, {function: (function,) for function in functions}, jobs=2)) == {
        calls.refuse: "no such data",
        calls.fail: "ZeroDivisionError: a mixer",
        calls.die: "its process ended with exit code 7: it may have run out of memory",
        calls.finish: None,
    }


def test_whoever_stops_at_the_first_failure_sees_it(tmp_path):
    """Though the second call has ended by then as well."""
    failing = in_processes(calls.run, {"a": (calls.refuse,), "b": (calls.refuse,), "c": (calls.refuse,)}, jobs=2)
    with pytest.raises(RuntimeError, match="no such data"), contextlib.closing(failing) as ended:
        for _, reason in ended:
            time.sleep(1)
            raise RuntimeError(reason)


def test_processes_import_from_where_this_one_does(tmp_path, monkeypatch):
    """And not from the folder that the user happens to be in."""
    (tmp_path / "graphslice").mkdir()
    (tmp_path / "graphslice" / "__init__.py").write_text("raise SystemExit('another checkout')")
    (tmp_path / "calls.py").write_text("raise SystemExit('another module')")
    code = (
        f"import sys; sys.path.insert(0, {str(Path(calls.__file__).parent)!r})\n"
        "import calls; from pathlib import Path\n"
        "from graphslice.processes import in_processes\n"
        "if __name__ == '__main__': print(dict(in_processes(calls.note, {1: (Path('noted'),)}, jobs=1)))"
    )
    home = str(Path(graphslice.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{1: None}\n", done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("way", ["terminal", "interrupt", "terminate", "kill", "kill-background"])
def test_calls_end_with_the_process_that_began_them(start_process, wait_for, wait_for_exit, way, tmp_path):
    """Ctrl-C in a terminal reaches the whole group of processes; the others the first alone."""
    sent = {"terminal": signal.SIGINT, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(way, signal.SIGKILL)
    process = start_process(sys.executable, calls.__file__, tmp_path, background=way == "kill-background")
    wait_for(process, tmp_path / "a", tmp_path / "b")
    (os.killpg if way == "terminal" else os.kill)(process.pid, sent)
    assert wait_for_exit(process) == (130 if sent == signal.SIGINT else -sent, "", "")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}  # none began after, none was interrupted twice
