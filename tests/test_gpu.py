"""What only a CUDA device can show. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import RunConfig
from graphslice.data.batch import collate
from graphslice.nn import GraphTransformer, ModelConfig
from graphslice.nn.mixers import MIXERS
from graphslice.ops import column_sort
from graphslice.predict import load
from graphslice.training import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMILES = ["C", "[Na+].[Cl-]", "CCO", "c1ccccc1O", "CC(C)(C)c1ccc(cc1)C(=O)O", "CCCCCCCCCCCCCCCCCCCC"]


@pytest.fixture
def batch():
    return collate([smiles_to_graph(smiles) for smiles in SMILES])


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_gpu_predicts_what_the_cpu_predicts(batch, mixer):
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=3, dim=32, heads=4)).eval()
    with torch.no_grad():
        on_cpu = model(batch)
        on_gpu = model.cuda()(batch.pin_memory().to("cuda", non_blocking=True)).cpu()
        with torch.autocast("cuda", torch.bfloat16):
            in_bf16 = model(batch.to("cuda")).cpu()
    assert torch.allclose(on_cpu, on_gpu, atol=1e-4 * float(on_cpu.std()) + 1e-6)
    assert torch.isfinite(in_bf16).all()
    assert (in_bf16 - on_cpu).abs().max() < 0.1 * (on_cpu.std() + on_cpu.abs().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_column_sort_on_a_gpu(dtype):
    x = torch.randn(8, 37, 64).to(dtype)
    lengths = torch.tensor([0, 1, 2, 37, 36, 17, 5, 30])
    order = torch.arange(64) % 2 == 0
    assert torch.equal(column_sort(x, lengths, order), column_sort(x.cuda(), lengths.cuda(), order.cuda()).cpu())


def test_a_run_on_the_gpu_uses_bf16_and_is_read_on_the_cpu(tmp_path):
    config = RunConfig.preset("demo")
    config.trainer.max_epochs, config.trainer.accelerator = 1, "cuda"
    result = train(config, tmp_path / "run")
    assert np.isfinite(result.metrics["test"]["mae"])
    on_gpu = load(result.folder, "cuda").predict(SMILES)
    on_cpu = load(result.folder, "cpu").predict(SMILES)
    assert np.allclose(on_gpu, on_cpu, atol=1e-2)
