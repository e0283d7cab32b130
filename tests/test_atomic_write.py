from __future__ import annotations

import pytest

from graphslice.atomic_write import atomic_write
from graphslice.errors import InputError


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "t.csv"
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"


def test_what_is_not_finished_leaves_the_former_one(tmp_path):
    (tmp_path / "t.csv").write_text("former")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "t.csv") as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]


def test_a_folder_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*: it is a folder"), atomic_write(tmp_path):
        pytest.fail("computed")
