"""Tests that need a CUDA device; skipped without one."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig, RunConfig
from graphslice.data.batches import collate
from graphslice.inference.predictor import Predictor, load
from graphslice.inference.torch_networks import TF32_MIXERS
from graphslice.nn import GraphTransformer
from graphslice.nn.compiled import UncompiledWarning
from graphslice.nn.mixers import MIXERS
from graphslice.ops import bond_messages, column_sort
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


@pytest.mark.parametrize(("mixer", "bonds"), [*((mixer, False) for mixer in sorted(MIXERS)), ("slice-quantile", True)])
def test_gpu_predictions_match_cpu(batch, mixer, bonds):
    torch.manual_seed(0)
    readout = "token+mean+max+quantiles+atomwise"
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


def on_one_gpu(**trainer) -> RunConfig:
    """With several GPUs, Lightning would rerun the tests in one process per GPU."""
    config = RunConfig.preset("small")
    config.trainer = replace(config.trainer, accelerator="cuda", devices="1", **trainer)
    return config


def test_gpu_run_loads_on_cpu(tmp_path):
    result = train(on_one_gpu(max_epochs=1), tmp_path / "run")
    assert np.isfinite(result.metrics["test"]["mae"])
    assert result.training["device"] == torch.cuda.get_device_name(0) and result.training["devices"] == 1
    assert result.training["precision"] == choose_precision("auto", [torch.cuda.get_device_capability(0)])
    assert 0 < result.training["peak_memory_bytes"] <= torch.cuda.max_memory_allocated(0)
    on_gpu = load(result.folder, "cuda").predict(SMILES)
    on_cpu = load(result.folder, "cpu").predict(SMILES)
    assert np.allclose(on_gpu, on_cpu, atol=1e-2)


def test_cpu_run_does_not_use_gpu(tmp_path):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    config = on_one_gpu(max_steps=2)
    config.trainer.accelerator = "cpu"
    assert train(config, tmp_path / "run").training["precision"] == "32-true"
    assert torch.cuda.max_memory_allocated() == before


@pytest.mark.parametrize("mixer", sorted(TF32_MIXERS))
def test_tf32_changes_predictions_by_less_than_one_percent_of_their_spread(mixer, make_predictor, demo_smiles):
    """The effect of the composition of the batch is as small."""
    model = make_predictor(8.0, mixer=mixer, layers=4, dim=64, heads=8, ffn_dim=64, readout="mean+max")
    on_cpu = model.predict(demo_smiles[:500])
    on_gpu = Predictor(model.checkpoints, "cuda")
    large_batch, small_batch = on_gpu.predict(demo_smiles[:500]), on_gpu.predict(demo_smiles[:16])
    assert np.abs(large_batch - on_cpu).max() < 1e-2 * on_cpu.std()
    assert np.abs(large_batch[:16] - small_batch).max() < 1e-2 * on_cpu.std()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_training_on_two_gpus(start, wait_for_exit, tmp_path):
    """In a separate process, since Lightning starts the command again for the second GPU."""
    options = ("--trainer.devices", 2, "--trainer.max_epochs", 2, "--trainer.batch_size", 64)
    code, _, err = wait_for_exit(start("train", "--out", tmp_path / "run", *options))
    assert code == 0 and err.count("test MAE") == 1, err
    training = json.loads((tmp_path / "run" / "training.json").read_text())
    assert training["devices"] == 2 and training["device"] == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [5, 19, 33, 128])
def test_column_sort_matches_reference(dtype, width):
    """Many ties, at the sizes of the paper; see also tests/ops/test_triton_sort.py."""
    torch.manual_seed(0)
    v = torch.randint(-40, 41, (64, width, 768), device="cuda").to(dtype)
    lengths, upstream = torch.randint(1, width + 1, (64,), device="cuda"), torch.randn_like(v)
    results = []
    for backend in ("torch", "triton"):
        leaf = v.clone().requires_grad_()
        actual = column_sort.using(backend)(leaf, lengths, torch.arange(768, device="cuda") % 3 == 1)
        results.append((actual.detach(), *torch.autograd.grad(actual, leaf, upstream)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bond_messages_matches_reference_without_synchronisation(dtype):
    """At the sizes of the paper."""
    torch.manual_seed(0)
    upper = (torch.randint(1, 61, (64, 33, 33)) * (torch.rand(64, 33, 33) < 0.07)).triu(1)
    bonds = (upper + upper.mT).short()
    tensors = [torch.randn(size).to(dtype) for size in ((64, 33, 768), (12, 768), (5, 768), (64, 33, 768))]
    results = []
    for device, leaf_dtype, backend in (("cpu", torch.float64, "torch"), ("cuda", dtype, "triton")):
        *leaves, upstream = (tensor.to(device, leaf_dtype) for tensor in tensors)
        leaves = [leaf.requires_grad_() for leaf in leaves]
        codes = bonds.to(device)
        for mode in ("default", "error"):  # the first call compiles the kernels
            torch.cuda.set_sync_debug_mode(mode)
            try:
                actual = bond_messages.using(backend)(leaves[0], codes, *leaves[1:])
                grads = torch.autograd.grad(actual, leaves, upstream)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        results.append([actual.detach(), *grads])
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other.cpu().double(), one, rtol=tolerance, atol=tolerance * float(one.std()))


@pytest.mark.parametrize(("mixer", "bonds"), [("softmax", False), ("slice-ascend", False), ("slice-quantile", True)])
def test_cuda_graph_steps_match_eager(batch, mixer, bonds):
    """Several steps through CUDA graphs, alternating between two lengths."""
    torch.manual_seed(0)
    settings = dict.fromkeys(("dropout", "input_dropout", "attention_dropout"), 0.0) | {"bond_messages": bonds}
    model = GraphTransformer(ModelConfig(mixer=mixer, layers=2, dim=32, heads=4, **settings)).cuda()
    batches = [
        batch.to("cuda"),
        collate([smiles_to_graph(s) for s in ["CCO", "C", "CC", "CN", "CO", "C#N"]], bonds=True).to("cuda"),
    ]

    def steps() -> list[torch.Tensor]:
        results = []
        for _ in range(4):
            for current in batches:
                model.zero_grad()
                torch.compiler.cudagraph_mark_step_begin()
                out = model(current)
                out.square().sum().backward()
                results += [out.detach().clone(), model.blocks[0].mixer.value.weight.grad.clone()]
        return results

    eager = steps()
    model.compile_blocks(len(batch), mode="reduce-overhead")
    warnings.simplefilter("error", UncompiledWarning)  # pytest restores the filters
    for one, other in zip(steps(), eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_compiled_bf16_run_matches_uncompiled(tmp_path):
    maes = []
    for compiled in ("off", "on"):
        result = train(on_one_gpu(max_epochs=3, compile=compiled), tmp_path / compiled)
        assert result.training["compiled"] == (compiled == "on")
        maes.append(result.metrics["valid"]["mae"])
    assert abs(maes[0] - maes[1]) < 0.1 * maes[0]
