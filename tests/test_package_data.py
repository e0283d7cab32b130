import pytest

from graphslice.package_data import default_cache, private_folder


def test_a_temporary_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder("kernels-")
    assert folder.stat().st_mode & 0o077 == 0 and private_folder("kernels-") == folder
    folder.chmod(0o775)  # as an earlier version made it
    assert private_folder("kernels-") == folder and folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    (tmp_path / f"kernels-{folder.stat().st_uid + 1}").mkdir()  # of another user
    other = private_folder("kernels-")
    assert other.parent == tmp_path and other.stat().st_mode & 0o077 == 0 and private_folder("kernels-") == other
    assert other.name != f"kernels-{folder.stat().st_uid + 1}"


def test_a_link_in_place_of_the_temporary_cache_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.delenv("GRAPHSLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = default_cache()
    assert folder.parent == tmp_path
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert default_cache() != folder and default_cache().is_dir()


def test_a_missing_folder_for_temporary_files_raises_an_os_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="missing"):
        private_folder("other-")
