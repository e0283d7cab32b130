from graphslice.system.machine import private_folder


def test_a_temporary_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder("kernels-")
    assert folder.stat().st_mode & 0o077 == 0 and private_folder("kernels-") == folder
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    taken = tmp_path / f"kernels-{folder.stat().st_uid + 1}"
    taken.mkdir()  # of another user
    other = private_folder("kernels-")
    assert other.parent == tmp_path and other.stat().st_mode & 0o077 == 0 and private_folder("kernels-") == other
    assert other != taken
