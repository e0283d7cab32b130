"""GPU inference, as far as it can be tested without a GPU: batch size and TF32."""

import threading
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import graphslice as gs
from graphslice.batch import GraphBatch
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.inference.torch_networks import gpu_batch_size, tf32_matmul
from graphslice.ops.dispatch import Operator

GIB = 2**30
PAPER = ModelConfig(layers=12, dim=768, heads=32, ffn_dim=768)


@pytest.fixture
def references(monkeypatch):
    """Run all operators in plain torch, as a GPU does without a kernel."""
    monkeypatch.setattr(Operator, "_backend_for", lambda *_: None)


def test_batch_size_grows_with_memory():
    sizes = [gpu_batch_size(int(size * GIB), PAPER) for size in (0.01, 1, 2, 80)]
    assert sizes[0] == 16 and sizes == sorted(sizes) and sizes[-1] == 1024
    assert sizes[2] == pytest.approx(2 * sizes[1], abs=2)  # between the limits it is proportional
    assert gpu_batch_size(GIB, ModelConfig()) > 2 * sizes[1]


class PeakMemory(TorchDispatchMode):
    """Measures the peak memory in bytes of the tensors created in the context."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._tensors = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self._tensors += [weakref.ref(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self._tensors = [ref for ref in self._tensors if ref() is not None]
        storages = {ref().untyped_storage().data_ptr(): ref().untyped_storage().nbytes() for ref in self._tensors}
        self.peak = max(self.peak, sum(storages.values()))
        return out


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_batch_stays_within_its_memory_fraction(mixer, make_predictor, references):
    """16 molecules of 32 atoms, with the free memory that the estimate requires for 16."""
    model = make_predictor(mixer=mixer, layers=2, dim=64, heads=8, ffn_dim=64).model.eval()
    batch = collate([gs.smiles_to_graph("C" * 32)] * 16)
    with torch.inference_mode(), PeakMemory() as memory:
        model(batch)
    sizes = range(1 << 20, 1 << 30, 1 << 18)
    required = next(size for size in sizes if gpu_batch_size(size, model.config) > 16)
    assert required / 16 < memory.peak < required / 4


def setting() -> object:
    products = torch.backends.cuda.matmul
    return products.fp32_precision if hasattr(products, "fp32_precision") else products.allow_tf32


def test_precision_of_products_is_restored():
    before, within = setting(), []
    with pytest.raises(ZeroDivisionError), tf32_matmul(torch.device("cuda"), "softmax"):
        within.append(setting())
        raise ZeroDivisionError
    assert within in (["tf32"], [True]) and setting() == before


@pytest.mark.parametrize(("device", "mixer"), [("cpu", "softmax"), ("cuda", "csp"), ("cuda", "custom mixer")])
def test_precision_of_products_is_unchanged(device, mixer):
    before = setting()
    with tf32_matmul(torch.device(device), mixer):
        assert setting() == before


def test_threads_wait_while_another_sets_the_precision():
    """Else one restores the setting within the batch of another, which then restores that of the first for good."""
    before, order = setting(), []

    def compute(mixer: str) -> None:
        with tf32_matmul(torch.device("cuda"), mixer):
            order.append((mixer, setting()))

    with tf32_matmul(torch.device("cuda"), "softmax"):
        other = threading.Thread(target=compute, args=("csp",))
        other.start()
        other.join(0.2)
        assert order == []
    other.join()
    assert order == [("csp", before)] and setting() == before


def test_predictor_on_a_simulated_gpu(make_predictor, demo_smiles, monkeypatch):
    """The tensors stay on the CPU, while the device of the networks is a GPU with 80 GiB."""
    model = make_predictor(mixer="softmax")
    expected = model.predict(demo_smiles[:300])
    sizes, settings = [], []
    forward = model.model.forward

    def spy(batch):
        sizes.append(len(batch))
        settings.append(setting())
        return forward(batch)

    model.networks.device = torch.device("cuda", 0)
    monkeypatch.setattr(model.model, "forward", spy)
    monkeypatch.setattr("graphslice.inference.torch_networks.free_memory", lambda device: 80 * GIB)
    monkeypatch.setattr(GraphBatch, "to", lambda batch, *_, **__: batch)
    monkeypatch.setattr(GraphBatch, "pin_memory", lambda batch: batch)
    np.testing.assert_allclose(model.predict(demo_smiles[:300]), expected, rtol=1e-5, atol=1e-6)
    assert sizes == [300] and settings in (["tf32"], [True])
