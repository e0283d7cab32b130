"""The GPUs are mocked: what is asked of torch, and for which of them."""

from __future__ import annotations

import pytest
import torch

from graphslice.hardware import default_device, device_name, hardware_info, peak_memory


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_gpu_of_a_mac_is_not_taken_unasked(there, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert default_device() == device


def test_the_peak_memory_of_a_gpu_is_its_own(monkeypatch):
    used = {torch.device("cuda", 0): 10, torch.device("cuda", 1): 20}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: used[device])
    assert [peak_memory(torch.device("cuda", i)) for i in (0, 1)] == [10, 20]


def test_the_peak_memory_of_a_process():
    before = peak_memory()
    block = bytearray(200 << 20)
    assert before > 50e6 and peak_memory(torch.device("cpu")) > before + len(block) // 2


def test_names_of_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "GPU 1"
    assert device_name("cpu") == hardware_info()["machine"] != ""
