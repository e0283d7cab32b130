"""Atomic writes, and the lock of a folder."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from graphslice.errors import InputError
from graphslice.system.files import atomic_write, locked

posix = pytest.mark.skipif(os.name != "posix", reason="of POSIX")


def test_file_appears_only_when_complete(tmp_path):
    path = tmp_path / "new" / "t.csv"
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"


def test_interrupted_write_keeps_the_former_file(tmp_path):
    (tmp_path / "t.csv").write_text("former")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "t.csv") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]


@pytest.mark.parametrize("write", [atomic_write, locked])
def test_what_cannot_be_written_is_rejected_before_the_block_runs(write, tmp_path):
    (tmp_path / "file").touch()
    wrong = tmp_path if write is atomic_write else tmp_path / "file"
    with pytest.raises(InputError, match="cannot write"), write(wrong):
        pytest.fail("computed")


def test_two_writers_of_one_path_do_not_mix(tmp_path):
    path = tmp_path / "t.csv"
    with atomic_write(path) as first, first.open("w") as one:
        one.write("first\n")
        one.flush()
        with atomic_write(path) as second:
            second.write_text("the second\n")
        assert path.read_text() == "the second\n"
        one.write("first again\n")
    assert path.read_text() == "first\nfirst again\n"
    assert list(tmp_path.iterdir()) == [path]


@posix
@pytest.mark.parametrize("mode", [0o664, 0o444])
def test_replaced_file_keeps_its_permissions(mode, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("private")
    path.chmod(mode)
    with atomic_write(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600  # private content is not readable while it is written
        temporary.write_text("private again")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("private again", mode)


@posix
def test_symbolic_link_is_replaced_and_its_target_is_not_changed(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "t.csv").symlink_to(tmp_path / "target")
    with atomic_write(tmp_path / "t.csv") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "target").read_text() == "precious"
    assert (tmp_path / "t.csv").read_text() == "new" and not (tmp_path / "t.csv").is_symlink()


def test_error_has_the_message_of_the_system(tmp_path):
    with pytest.raises(InputError, match=r"No space left on device$"), atomic_write(tmp_path / "t.csv"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]")
    assert list(tmp_path.iterdir()) == []


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


@posix
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


@posix
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_file_system_without_locks_is_used(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "file").touch()
    assert (tmp_path / "run" / "file").exists()
