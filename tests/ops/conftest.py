"""What the tests of a GPU's kernels share."""

import pytest
import torch


@pytest.fixture
def started_on(monkeypatch) -> list[torch.device]:
    """The devices on which kernels of Triton are started, which are those of tensors and not the current one."""
    devices = []

    class DeviceOf(torch.cuda.device_of):
        def __init__(self, tensor):
            devices.append(tensor.device)
            super().__init__(tensor)

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    return devices
