"""Fixtures for tests of Triton kernels."""

import pytest
import torch


@pytest.fixture
def launch_devices(monkeypatch) -> list[torch.device]:
    """Devices on which Triton kernels are launched: those of their tensors, not the current device."""
    devices = []

    class DeviceOf(torch.cuda.device_of):
        def __init__(self, tensor):
            devices.append(tensor.device)
            super().__init__(tensor)

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    return devices
