"""Devices and memory, with mocked GPUs; folders of compiled kernels."""

import os
import subprocess
import sys

import pytest
import torch

from graphslice.system.machine import (
    choose_kernel_folder,
    cores,
    default_device,
    device_name,
    hardware_info,
    peak_memory,
    remove_kernels_of_other_versions,
    temporary_cache,
)


@pytest.mark.parametrize(("limit", "count"), [("50000 100000\n", 1), ("max 100000\n", 8), (None, 8)])
def test_cores_are_limited_by_the_quota_of_a_container(limit, count, tmp_path, monkeypatch):
    if limit:
        (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr("graphslice.system.machine._CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert cores() == count


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda"), (False, "cpu")])
def test_mps_is_never_the_default_device(cuda, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert default_device() == device


def test_torch_is_asked_for_gpus_only_where_there_is_a_driver():
    code = (
        "import sys; from graphslice.system import machine\n"
        "for driver in (False, True):\n"
        "    machine.has_gpu_driver = lambda: driver; machine.default_device(); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "True"]


def test_peak_memory_is_counted_per_gpu(monkeypatch):
    used = {torch.device("cuda", 0): 10, torch.device("cuda", 1): 20}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: used[device])
    assert [peak_memory(torch.device("cuda", i)) for i in (0, 1)] == [10, 20]


def test_peak_memory_is_that_of_the_process_and_not_of_its_parent():
    code = (
        "from graphslice.system.machine import peak_memory; before = peak_memory(); block = bytearray(200 << 20); "
        "print(before, peak_memory())"
    )
    block = b"x" * (800 << 20)
    before, after = map(int, subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert 10e6 < before < len(block) < peak_memory() and after > before + (200 << 20) // 2


def test_device_names(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "GPU 1"
    assert device_name("cpu") == hardware_info()["machine"] != ""


def test_kernels_of_another_version_are_removed_once(tmp_path):
    kernels = [tmp_path / "__pycache__" / "a.py311.nbi", tmp_path / "chem" / "__pycache__" / "b.py311.nbc"]
    for version in ("1.0", "1.1", "1.0"):
        for removed in (True, False):
            for file in kernels:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            remove_kernels_of_other_versions(tmp_path, version)
            assert not any(file.exists() == removed for file in kernels)


@pytest.mark.parametrize("writable", [True, False])
def test_kernels_are_kept_in_the_package_or_in_the_cache_of_the_user(writable, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "x")  # so that it is restored
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr("os.access", lambda *_: writable)
    choose_kernel_folder(tmp_path, "1.0")
    assert os.environ.get("NUMBA_CACHE_DIR") == (None if writable else str(tmp_path / "kernels-1.0"))


def test_a_temporary_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = temporary_cache.__wrapped__()
    assert folder.stat().st_mode & 0o077 == 0 and temporary_cache.__wrapped__() == folder
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    taken = tmp_path / f"graphslice-cache-{folder.stat().st_uid + 1}"
    taken.mkdir()  # of another user
    other = temporary_cache.__wrapped__()
    assert other.parent == tmp_path and other.stat().st_mode & 0o077 == 0 and other != taken
