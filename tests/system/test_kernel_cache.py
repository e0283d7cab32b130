import os

import pytest

from graphslice.system.machine import choose_kernel_folder, remove_kernels_of_other_versions


@pytest.fixture
def kernels(tmp_path):
    found = [tmp_path / "__pycache__" / "a.py311.nbi", tmp_path / "chem" / "__pycache__" / "b.py311.nbi"]
    for file in found:
        file.parent.mkdir(parents=True)
        file.touch()
    return found


def test_kernels_are_removed_once_for_each_version(kernels, tmp_path):
    for version in ("1.0", "1.1", "1.0"):
        remove_kernels_of_other_versions(tmp_path, version)
        assert not any(file.exists() for file in kernels)
        for file in kernels:
            file.touch()
        remove_kernels_of_other_versions(tmp_path, version)
        assert all(file.exists() for file in kernels)


def test_a_folder_that_cannot_be_written_is_left_alone(kernels, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    remove_kernels_of_other_versions(tmp_path, "1.0")
    assert all(file.exists() for file in kernels) and not (tmp_path / "__pycache__" / "kernels").exists()


@pytest.mark.parametrize(("writable", "moved"), [(("package", "home"), False), (("home",), False), ((), True)])
def test_kernels_are_kept_where_it_is_possible(writable, moved, tmp_path, monkeypatch):
    for name in ("package", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "x")  # so that it is restored
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr("os.access", lambda folder, mode: folder.name in writable)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    choose_kernel_folder(tmp_path / "package")
    assert ("NUMBA_CACHE_DIR" in os.environ) == moved
