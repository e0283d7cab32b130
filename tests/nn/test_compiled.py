"""Compiled blocks with many numbers of rows, and their eager fallback."""

import pytest
import torch

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer, compiled


def test_shapes_beyond_the_limit_run_eagerly(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "MAX_COMPILED", 2)
    name = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    with torch._dynamo.config.patch(name, 1):
        torch.manual_seed(0)
        model = GraphTransformer(ModelConfig(mixer="map-only", layers=1, dim=16, heads=2, ffn_dim=16)).eval()
        batches = [collate([smiles_to_graph("C" * atoms)]) for atoms in (1, 2, 3, 4)]
        expected = [model(batch) for batch in batches]
        model.compile_blocks(1, backend=backend)
        for _ in range(2):
            for batch, before in zip(batches, expected, strict=True):
                torch.testing.assert_close(model(batch), before)
    assert len(graphs) == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no such kernel")])
def test_shape_that_cannot_be_compiled_runs_eagerly(error):
    torch._dynamo.reset()
    calls = []

    def backend(graph, inputs):
        if inputs[0].shape[1] > 2:
            raise error
        return lambda *args: calls.append(args[0].shape[1]) or graph(*args)

    run = compiled.compiled_or_eager(lambda x, _: x + 1, backend=backend)
    x = torch.zeros(1, 3, 2)
    with pytest.warns(compiled.UncompiledWarning, match="batches of 3 rows run uncompiled"):
        assert torch.equal(run(x, {}), x + 1)
    assert torch.equal(run(x, {}), x + 1) and torch.equal(run(x[:, :2], {}), x[:, :2] + 1)
    assert calls == [2]


@pytest.mark.parametrize(
    ("device", "dtype", "multiple"),
    [("cpu", torch.float32, 1), ("cuda", torch.float32, 4), ("cuda", torch.bfloat16, 8), ("cuda", torch.float16, 8)],
)
def test_row_multiple_aligns_rows_to_16_bytes_on_a_gpu(device, dtype, multiple):
    assert compiled.row_multiple(device, dtype) == multiple


def test_unsupported_gpu_runs_eagerly(monkeypatch):
    bf16 = torch.bfloat16
    assert [compiled.inductor_supports(c, bf16) for c in (70, 75, 80, 90)] == [False, False, True, True]
    assert [compiled.inductor_supports(c, torch.float32) for c in (61, 70, 75)] == [False, True, True]
    monkeypatch.setattr(compiled, "capability", lambda device: 75)
    ran = []
    run = compiled.compiled_or_eager(lambda x, _: x + 1, backend=lambda graph, _: ran.append(graph) or graph)
    x = torch.zeros(2)
    with torch.autocast("cpu", bf16):
        assert torch.equal(run(x, {}), x + 1) and not ran
    assert torch.equal(run(x, {}), x + 1) and len(ran) == 1
