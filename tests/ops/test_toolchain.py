"""Detection of missing compilers and the warning about them."""

import logging

import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer
from graphslice.ops import dispatch, toolchain


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A Linux machine without a compiler, as a function that adds a program to its PATH."""
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: name)

    def add(program: str) -> None:
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
        clear_caches()

    def clear_caches() -> None:
        toolchain.compiler_missing.cache_clear()
        toolchain.warn_of_missing_compiler.cache_clear()
        dispatch.triton_runs.cache_clear()

    clear_caches()
    yield add
    monkeypatch.undo()
    clear_caches()


def test_compiler_missing_names_the_requirement(bare, monkeypatch, tmp_path):
    assert toolchain.compiler_missing("cuda") == "a C compiler (gcc or clang)"
    assert toolchain.compiler_missing("cpu") == "a C++ compiler (g++)"
    bare("clang")
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "Python headers" in toolchain.compiler_missing("cuda")
    bare("Python.h")
    assert toolchain.compiler_missing("cuda") is None
    monkeypatch.setenv("CC", "other-cc -m64")
    monkeypatch.setenv("CXX", "other-cxx")
    bare("g++")
    assert "C compiler" in toolchain.compiler_missing("cuda") and "C++" in toolchain.compiler_missing("cpu")
    bare("other-cc")
    bare("other-cxx")
    assert toolchain.compiler_missing("cuda") is None and toolchain.compiler_missing("cpu") is None
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    bare("gcc")
    assert toolchain.compiler_missing("cuda") == "Triton"


def test_gpu_without_compiler_disables_triton_and_warns_once(bare, monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "TRITON_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING, "graphslice"):
        assert not dispatch.triton_runs()
        assert toolchain.warn_of_missing_compiler("cuda")
    assert len(caplog.messages) == 1 and "install a C compiler (gcc or clang)" in caplog.messages[0]


def test_model_runs_uncompiled_without_compiler(bare, caplog):
    torch.manual_seed(0)
    model = GraphTransformer(ModelConfig(mixer="map-only", layers=1, dim=16, heads=2, ffn_dim=16)).eval()
    batch = collate([smiles_to_graph("CCO")])
    before = model(batch)
    with caplog.at_level(logging.WARNING, "graphslice"):
        model.compile_blocks(1)
    assert torch.equal(model(batch), before) and "C++" in caplog.text
