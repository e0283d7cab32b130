import pytest

from graphslice.kernel_cache import remove_kernels_of_other_versions


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
