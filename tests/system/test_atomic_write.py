import errno
import os
import stat

import pytest

from graphslice.errors import InputError
from graphslice.system.files import atomic_write

posix = pytest.mark.skipif(os.name != "posix", reason="of POSIX")


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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


def test_folder_is_rejected_before_the_block_runs(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*: it is a folder"), atomic_write(tmp_path):
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
@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_new_file_has_the_permissions_of_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "t.csv") as temporary:
            temporary.write_text("new")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "t.csv") == mode


@posix
@pytest.mark.parametrize("mode", [0o664, 0o444])
def test_replaced_file_keeps_its_permissions(mode, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("private")
    path.chmod(mode)
    with atomic_write(path) as temporary:
        assert mode_of(temporary) == 0o600  # private content must not be readable while it is written
        temporary.write_text("private again")
    assert (path.read_text(), mode_of(path)) == ("private again", mode)


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
