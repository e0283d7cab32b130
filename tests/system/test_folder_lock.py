import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from graphslice.errors import InputError
from graphslice.system.files import locked

HOLD = (
    "import pathlib, sys\nfrom graphslice.system.files import locked\n"
    "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
)


def holder(folder) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_second_process_is_rejected_and_changes_nothing(tmp_path):
    with holder(tmp_path / "run") as process:
        with pytest.raises(InputError, match="another process is using"), locked(tmp_path / "run", wait=0):
            pytest.fail("in")
        assert (tmp_path / "run" / ".lock").exists()
        process.communicate("")
    assert process.returncode == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="of POSIX")
def test_lock_file_of_a_killed_process_does_not_block(tmp_path):
    with holder(tmp_path / "run") as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "file").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def test_lock_is_reentrant_in_its_thread_only(tmp_path):
    errors = []

    def acquire() -> None:
        try:
            with locked(tmp_path / "run", wait=0):
                pass
        except InputError as error:
            errors.append(error)

    with locked(tmp_path / "run", wait=0):
        with locked(tmp_path / "run", wait=0):
            pass
        thread = threading.Thread(target=acquire)
        thread.start()
        thread.join()
    assert len(errors) == 1 and list(tmp_path.iterdir()) == []


def test_created_folders_are_removed_if_empty(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "runs" / "run"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with locked(tmp_path / "mine" / "run"), locked(tmp_path / "mine"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl")
@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_file_system_without_locks_is_used(code, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", fail)
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "file").touch()
    assert (tmp_path / "run" / "file").exists()
