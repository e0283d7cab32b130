"""Blocks that run on chunks of the batch, one per core, compared with serial runs.

Traced programs are disabled, because they would run in place of the modules.
"""

from contextlib import nullcontext

import pytest
import torch
from mixer_samples import SMILES

from graphslice.chem import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.collate import collate
from graphslice.nn import GraphTransformer
from graphslice.nn.cpu_parallel import num_chunks, run_in_chunks
from graphslice.nn.mixers import MIXERS
from graphslice.ops import dropout
from graphslice.program.run import programs_disabled

#: Settings of the second version of Graphormer: other norms and another head.
POST = {"norm": "post", "embedding_norm": True, "head": "mlp", "activation_dropout": 0.1}
NO_DROPOUT = {"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
#: Molecules without symmetric atoms.
ASYMMETRIC = ["CC(F)(Cl)C=CO", "NC(=O)C1CC(Br)CO1", "CSC(C#N)OC=S", "Oc1cc(F)nc(Cl)c1N"]
ARCHITECTURES = pytest.mark.parametrize("settings", [{}, POST], ids=["pre", "post"])


@pytest.fixture(autouse=True)
def modules_run(request):
    with nullcontext() if "programs" in request.fixturenames else programs_disabled():
        yield


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr("graphslice.nn.cpu_parallel._MIN_CHUNK_VALUES", 100)  # the batches here are small
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def batch():
    return collate([smiles_to_graph(smiles) for smiles in SMILES * 4])


def model_of(mixer: str, **settings) -> GraphTransformer:
    """Create a model of a size that the compiled kernels support."""
    torch.manual_seed(0)
    config = ModelConfig(mixer=mixer, layers=2, dim=32, heads=2, ffn_dim=48, init="balanced", **settings)
    return GraphTransformer(config)


def step(model, batch) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(batch)
    out.sin().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_close(actual, expected):
    scale = max(float(tensor.abs().max()) for tensor in expected[1:])
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=4e-6 * scale)


@ARCHITECTURES
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_parallel_matches_serial(mixer, settings, batch, three_threads, monkeypatch):
    model, calls = model_of(mixer, **settings | NO_DROPOUT), []

    def count(*arguments):
        calls.append(arguments[-1])
        return run_in_chunks(*arguments)

    monkeypatch.setattr("graphslice.nn.model.run_in_chunks", count)
    parallel = step(model, batch)
    with torch.inference_mode():
        torch.testing.assert_close(model(batch), parallel[0], rtol=1e-5, atol=1e-5)
    assert calls == [3, 3]
    torch.set_num_threads(1)
    assert_close(parallel, step(model, batch))
    assert calls == [3, 3]


@pytest.mark.parametrize("programs", [False, True], ids=["modules", "program"])
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_float32_gradients_match_double_precision(mixer, programs):
    """The molecules are asymmetric: the order of equal values could differ between the precisions."""
    batch = collate([smiles_to_graph(smiles) for smiles in ASYMMETRIC])
    model = model_of(mixer, **NO_DROPOUT)
    with nullcontext() if programs else programs_disabled():
        single = step(model, batch)
    double = [tensor.float() for tensor in step(model.double(), batch)]
    torch.testing.assert_close(single[0], double[0], rtol=1e-4, atol=1e-6)
    scale = max(float(tensor.abs().max()) for tensor in double[1:])
    for one, other in zip(single[1:], double[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("mixer", ["softmax", "slice-ascend"])
def test_dropout_depends_on_the_seed_only(mixer, batch, three_threads):
    model = model_of(mixer, dropout=0.2, input_dropout=0.1, attention_dropout=0.2).train()
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(step(model, batch))
    assert all(torch.equal(one, other) for one, other in zip(*results[:2], strict=True))
    assert not torch.equal(results[0][0], results[2][0])


def test_dropout_differs_between_chunks(three_threads):
    torch.manual_seed(0)
    x = torch.ones(30, 16, requires_grad=True)
    output = run_in_chunks(lambda x, tensors: dropout(x, 0.5), x, {}, [], 3)
    first, second, third = output.detach().chunk(3)
    assert not torch.equal(first, second) and not torch.equal(second, third)
    output.sum().backward()
    torch.testing.assert_close(x.grad, output.detach())


def test_unused_parameters_and_tensors_without_gradients(three_threads):
    x, scale, unused = torch.randn(9, 4, requires_grad=True), torch.randn(4, requires_grad=True), torch.randn(2)
    unused.requires_grad_()
    tensors = {"weights": torch.rand(9, 1, requires_grad=True), "lengths": torch.arange(9)}

    def run(x, tensors):
        return x * scale * tensors["weights"] + tensors["lengths"][:, None]

    output = run_in_chunks(run, x, tensors, [scale, unused], 4)
    torch.testing.assert_close(output, run(x, tensors))
    grads = [
        torch.autograd.grad(out.square().sum(), (x, scale, tensors["weights"]), retain_graph=True)
        for out in (run(x, tensors), output)
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(RuntimeError, match="already"):
        torch.autograd.grad(output.sum(), x)


def test_grad_mode_and_autocast_apply_to_the_chunks(three_threads):
    x = torch.randn(9, 16)
    seen = []

    def run(x, tensors):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return x @ torch.ones(16, 16)

    with torch.inference_mode():
        run_in_chunks(run, x, {}, [], 3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert run_in_chunks(run, x, {}, [], 3).dtype == torch.bfloat16
    assert run_in_chunks(run, x.requires_grad_(), {}, [], 3).dtype == torch.float32
    assert seen == 3 * [(False, True)] + 3 * [(False, False)] + 3 * [(True, False)]


def test_error_in_a_chunk_is_raised(three_threads):
    def run(x, tensors):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_in_chunks(run, torch.randn(9, 2), {}, [], 3)


def test_large_models_and_small_batches_are_not_split(three_threads):
    assert num_chunks(torch.empty(100, 20), 10) == 3
    assert num_chunks(torch.empty(2, 200), 10) == 2
    assert num_chunks(torch.empty(100, 1), 10) == 1
    assert num_chunks(torch.empty(100, 20), 10**9) == 1
    assert num_chunks(torch.empty(100, 20, device="meta"), 10) == 1


@ARCHITECTURES
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_compiled_blocks_match_eager_blocks(mixer, settings, batch):
    """There is one graph without breaks, which runs only for batches of the compiled size."""
    model = model_of(mixer, **settings | NO_DROPOUT)
    expected = step(model, batch)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model.compile_blocks(len(batch), backend=backend)
    assert_close(step(model, batch), expected)
    assert len(graphs) == 1
    model(collate([smiles_to_graph(smiles) for smiles in SMILES]))
    assert len(graphs) == 1


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_bf16_predictions_are_close_to_float32(mixer, batch):
    """Predictions of an untrained model vary little; the relative error of a trained model is smaller."""
    model = model_of(mixer, readout="mean").eval()
    with torch.no_grad():
        expected = model(batch)
        with torch.autocast("cpu", torch.bfloat16):
            predictions = model(batch)
    assert predictions.dtype == torch.float32
    assert (predictions - expected).square().mean().sqrt() < 0.05 * expected.std()
