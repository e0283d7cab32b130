"""What only a CUDA device can show. Skipped without one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig, RunConfig
from graphslice.data.collate import collate
from graphslice.inference.gpu import TF32_MIXERS
from graphslice.inference.predictor import Predictor, load
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.ops import aggregate_sort, bond_messages, column_sort
from graphslice.training import train
from graphslice.training.devices import choose_precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMILES = ["C", "[Na+].[Cl-]", "CCO", "c1ccccc1O", "CC(C)(C)c1ccc(cc1)C(=O)O", "CCCCCCCCCCCCCCCCCCCC"]


@pytest.fixture
def batch():
    return collate([smiles_to_graph(smiles) for smiles in SMILES], bonds=True)


@pytest.mark.parametrize("bonds", [False, True])
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_a_gpu_predicts_what_the_cpu_predicts(batch, mixer, bonds):
    torch.manual_seed(0)
    readout = "token+mean+max+quantiles"
    config = ModelConfig(mixer=mixer, layers=3, dim=32, heads=4, readout=readout, bond_messages=bonds)
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


def on_one_gpu(**trainer) -> RunConfig:
    """Of several, Lightning would start the tests again, one process a GPU."""
    config = RunConfig.preset("small")
    config.trainer = replace(config.trainer, accelerator="cuda", devices="1", **trainer)
    return config


def test_a_run_on_the_gpu_is_read_on_the_cpu(tmp_path):
    result = train(on_one_gpu(max_epochs=1), tmp_path / "run")
    assert np.isfinite(result.metrics["test"]["mae"])
    assert result.training["device"] == torch.cuda.get_device_name(0) and result.training["devices"] == 1
    assert result.training["precision"] == choose_precision("auto", [torch.cuda.get_device_capability(0)])
    assert 0 < result.training["peak_memory_bytes"] <= torch.cuda.max_memory_allocated(0)
    on_gpu = load(result.folder, "cuda").predict(SMILES)
    on_cpu = load(result.folder, "cpu").predict(SMILES)
    assert np.allclose(on_gpu, on_cpu, atol=1e-2)


def test_a_run_on_the_cpu_leaves_the_gpu_alone(tmp_path):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    config = on_one_gpu(max_steps=2)
    config.trainer.accelerator = "cpu"
    assert train(config, tmp_path / "run").training["precision"] == "32-true"
    assert torch.cuda.max_memory_allocated() == before


@pytest.mark.parametrize("mixer", sorted(TF32_MIXERS))
def test_tf32_moves_predictions_by_less_than_a_hundredth_of_their_spread(mixer, make_predictor, demo_smiles):
    """And it matters as little which molecules share a batch."""
    model = make_predictor(8.0, mixer=mixer, layers=4, dim=64, heads=8, ffn_dim=64, readout="mean+max")
    on_cpu = model.predict(demo_smiles[:500])
    on_gpu = Predictor(model.checkpoints, "cuda")
    found, alone = on_gpu.predict(demo_smiles[:500]), on_gpu.predict(demo_smiles[:16])
    assert np.abs(found - on_cpu).max() < 1e-2 * on_cpu.std()
    assert np.abs(found[:16] - alone).max() < 1e-2 * on_cpu.std()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus(start, wait_for_exit, tmp_path):
    """In processes of their own, as Lightning starts the command again for the second."""
    options = ("--trainer.devices", 2, "--trainer.max_epochs", 2, "--trainer.batch_size", 64)
    code, _, err = wait_for_exit(start("train", "--out", tmp_path / "run", *options))
    assert code == 0 and err.count("test MAE") == 1, err
    training = json.loads((tmp_path / "run" / "training.json").read_text())
    assert training["devices"] == 2 and training["device"] == torch.cuda.get_device_name(0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_comparison_trains_on_every_gpu(start, wait_for_exit, tmp_path):
    options = ("--mixers", "slice-max,map-only", "--seeds", 1, "--budget", "1epochs", "--out", tmp_path / "c")
    code, _, err = wait_for_exit(start("compare", *options))
    assert code == 0, err
    result = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert result["jobs"] == torch.cuda.device_count() and all("error" not in run for run in result["runs"])


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_bond_messages(dtype):
    """At the sizes of the paper; and nothing waits for the GPU."""
    torch.manual_seed(0)
    upper = (torch.randint(1, 61, (64, 33, 33)) * (torch.rand(64, 33, 33) < 0.07)).triu(1)
    bonds = (upper + upper.mT).short()
    tensors = [torch.randn(size).to(dtype) for size in ((64, 33, 768), (12, 768), (5, 768), (64, 33, 768))]
    results = []
    for device, wanted_dtype, backend in (("cpu", torch.float64, "torch"), ("cuda", dtype, "triton")):
        *leaves, upstream = (tensor.to(device, wanted_dtype) for tensor in tensors)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        words = bonds.to(device)
        for mode in ("default", "error"):  # the first call compiles the kernels
            torch.cuda.set_sync_debug_mode(mode)
            try:
                found = bond_messages.using(backend)(leaves[0], words, *leaves[1:])
                given = torch.autograd.grad(found, leaves, upstream)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        results.append([found.detach(), *given])
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other.cpu().double(), one, rtol=tolerance, atol=tolerance * float(one.std()))


@pytest.mark.parametrize(("mixer", "bonds"), [*((mixer, False) for mixer in sorted(MIXERS)), ("slice-quantile", True)])
def test_captured_steps_compute_what_eager_ones_do(batch, mixer, bonds):
    """Several steps through CUDA graphs, of two lengths in turn."""
    torch.manual_seed(0)
    settings = dict.fromkeys(("dropout", "input_dropout", "attention_dropout"), 0.0) | {"bond_messages": bonds}
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=2, dim=32, heads=4, **settings)).cuda()
    batches = [
        batch.to("cuda"),
        collate([smiles_to_graph(s) for s in ["CCO", "C", "CC", "CN", "CO", "C#N"]], bonds=True).to("cuda"),
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
        result = train(on_one_gpu(max_epochs=3, compile=compiled), tmp_path / compiled)
        assert result.training["compiled"] == (compiled == "on")
        maes.append(result.metrics["valid"]["mae"])
    assert abs(maes[0] - maes[1]) < 0.1 * maes[0]
