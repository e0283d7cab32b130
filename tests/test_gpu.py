"""What only a CUDA device can show. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig, RunConfig
from graphslice.data.collate import collate
from graphslice.inference.predictor import load
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.ops import aggregate_sort, column_sort
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
    config = ModelConfig(mixer=mixer, layers=3, dim=32, heads=4, readout="token+mean+max+quantiles")
    model = GraphTransformer(config).eval()
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
    config = RunConfig.preset("small")
    config.trainer.max_epochs, config.trainer.accelerator = 1, "cuda"
    result = train(config, tmp_path / "run")
    assert np.isfinite(result.metrics["test"]["mae"])
    on_gpu = load(result.folder, "cuda").predict(SMILES)
    on_cpu = load(result.folder, "cpu").predict(SMILES)
    assert np.allclose(on_gpu, on_cpu, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [5, 19, 33, 128])
def test_the_kernel_of_the_sorted_product(dtype, width):
    """Exact products and many ties, at the sizes of the paper; see tests/ops/test_triton_sort.py for more."""
    torch.manual_seed(0)
    maps = (torch.randint(0, 5, (64, 32, width, width), device="cuda") / 16).to(dtype)
    v = torch.randint(-4, 5, (64, width, 768), device="cuda").to(dtype)
    lengths = torch.randint(1, width + 1, (64,), device="cuda")
    valid = (torch.arange(width, device="cuda") < lengths[:, None])[:, :, None]
    upstream = torch.randint(-3, 4, v.shape, device="cuda").to(dtype) * valid
    results = []
    for backend in ("torch", "triton"):
        leaves = maps.clone().requires_grad_(), v.clone().requires_grad_()
        found = aggregate_sort.using(backend)(*leaves, lengths)
        results.append(((found * valid).detach(), *torch.autograd.grad(found, leaves, upstream)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(
            one.float(), other.float(), rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4
        )


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_captured_steps_compute_what_eager_ones_do(batch, mixer):
    """Several steps through CUDA graphs, of two lengths in turn."""
    torch.manual_seed(0)
    no_dropout = dict.fromkeys(("dropout", "input_dropout", "attention_dropout"), 0.0)
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=2, dim=32, heads=4, **no_dropout)).cuda()
    batches = [
        batch.to("cuda"),
        collate([smiles_to_graph(s) for s in ["CCO", "C", "CC", "CN", "CO", "C#N"]]).to("cuda"),
    ]

    def steps() -> list[torch.Tensor]:
        found = []
        for _ in range(4):
            for each in batches:
                model.zero_grad()
                torch.compiler.cudagraph_mark_step_begin()
                out = model(each)
                out.square().sum().backward()
                found += [out.detach().clone(), model.blocks[0].mixer.value.weight.grad.clone()]
        return found

    eager = steps()
    model.compile_blocks(len(batch), mode="reduce-overhead")
    for one, other in zip(steps(), eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_a_compiled_run_in_bf16_ends_near_the_plain_one(tmp_path):
    maes = []
    for compiled in ("off", "on"):
        config = RunConfig.preset("small")
        config.trainer.max_epochs, config.trainer.accelerator, config.trainer.compile = 3, "cuda", compiled
        maes.append(train(config, tmp_path / compiled).metrics["valid"]["mae"])
    assert abs(maes[0] - maes[1]) < 0.1 * maes[0]
