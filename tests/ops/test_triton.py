"""Detection of missing compilers; launches; tile sizes: test_triton_compiles.py counts their instructions."""

import logging
from contextlib import nullcontext

import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer
from graphslice.ops import triton


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A Linux machine without a compiler, as a function that adds a program to its PATH."""
    monkeypatch.setattr(triton.sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: name)

    def add(program: str) -> None:
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
        clear_caches()

    def clear_caches() -> None:
        triton.compiler_missing.cache_clear()
        triton.warn_of_missing_compiler.cache_clear()
        triton.triton_runs.cache_clear()

    clear_caches()
    yield add
    monkeypatch.undo()
    clear_caches()


def test_compiler_missing_names_the_requirement(bare, monkeypatch, tmp_path):
    assert triton.compiler_missing("cuda") == "a C compiler (gcc or clang)"
    assert triton.compiler_missing("cpu") == "a C++ compiler (g++)"
    bare("clang")
    monkeypatch.setattr(triton.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python headers" in triton.compiler_missing("cuda")
    bare("Python.h")
    assert triton.compiler_missing("cuda") is None
    monkeypatch.setenv("CC", "other-cc -m64")
    monkeypatch.setenv("CXX", "other-cxx")
    bare("g++")
    assert "C compiler" in triton.compiler_missing("cuda") and "C++" in triton.compiler_missing("cpu")
    bare("other-cc")
    bare("other-cxx")
    assert triton.compiler_missing("cuda") is None and triton.compiler_missing("cpu") is None
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda name: None)
    bare("gcc")
    assert triton.compiler_missing("cuda") == "Triton"


def test_gpu_without_compiler_disables_triton_and_warns_once(bare, monkeypatch, caplog):
    monkeypatch.setattr(triton, "TRITON_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING, "graphslice"):
        assert not triton.triton_runs()
        assert triton.warn_of_missing_compiler("cuda")
    assert len(caplog.messages) == 1 and "install a C compiler (gcc or clang)" in caplog.messages[0]


def test_model_runs_uncompiled_without_compiler(bare, caplog):
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(mixer="map-only", layers=1, dim=16, heads=2, ffn_dim=16)).eval()
    batch = collate([smiles_to_graph("CCO")])
    before = model(batch)
    with caplog.at_level(logging.WARNING, "graphslice"):
        model.compile_blocks(1)
    assert torch.equal(model(batch), before) and "C++" in caplog.text


def test_kernels_launch_on_the_device_of_their_operands(monkeypatch):
    """With several GPUs it may differ from the current device."""
    devices, calls = [], []
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: devices.append(x.device) or nullcontext())
    grids = {(2, 3): lambda *operands, **constants: calls.append((operands, constants))}
    x = torch.zeros(2, device="meta")
    triton.launch(grids, (2, 3), x, 4, ROWS=16)
    assert devices == [x.device] and calls == [((x, 4), {"ROWS": 16})]


def test_turing_does_not_support_bfloat16():
    half, bf16 = torch.float16, torch.bfloat16
    assert [triton.supports_dtype(half, capability) for capability in (70, 75, 80)] == [False, True, True]
    assert [triton.supports_dtype(bf16, capability) for capability in (70, 75, 80)] == [False, False, True]


@pytest.mark.parametrize("dtype", triton.DTYPES)
def test_sort_tile_holds_the_rows_and_fits_registers(dtype):
    for width in (1, 2, 3, 20, 64, 65, 1000, triton.MAX_SORT_ROWS):
        for channels in (1, 24, 768):
            height, rows, columns, warps = triton.sort_tile(width, channels, dtype).values()
            assert rows >= width <= height and rows & (rows - 1) == columns & (columns - 1) == 0
            assert rows * columns <= 64 * 32 * warps or columns == 1
