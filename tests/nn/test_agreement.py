"""Detection of backends and compiled blocks that fail or give wrong results."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from graphslice.chem.molecule import read_smiles
from graphslice.config import ModelConfig
from graphslice.data.batches import extreme_batches
from graphslice.data.store import GraphStore
from graphslice.nn import GraphTransformer
from graphslice.nn.agreement import Step, compile_checked, compute_step, faulty_backends, step_mismatch
from graphslice.nn.mixers import MIXERS, Mixer
from graphslice.ops import column_sort
from graphslice.program.run import programs_disabled

SMILES = ["C", "CC(=O)Oc1ccccc1C(=O)O", "CCO", "c1ccccc1", "CN1CCC[C@H]1c1cccnc1", "[Na+].[Cl-]", "CC(C)C", "OCC#N"]


@pytest.fixture
def batches():
    store = GraphStore.from_arrays(*read_smiles(SMILES)[:2])
    return extreme_batches(store, np.arange(len(store)))


def test_extreme_batches_hold_smallest_and_largest_molecules(batches):
    assert [sorted(batch.lengths.tolist()) for batch in batches] == [[1, 2, 3, 4], [4, 6, 12, 13]]


def model_of(mixer: str) -> GraphTransformer:
    torch.manual_seed(0)
    return GraphTransformer(ModelConfig(mixer=mixer, layers=2, dim=32, heads=4, ffn_dim=32))


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_correct_backends_are_not_reported(mixer, dtype, batches):
    assert faulty_backends(model_of(mixer), batches, dtype) == {}


def test_no_backend_is_reported_for_a_mixer_that_is_random_in_training(batches, monkeypatch):
    """Nor does the check change what such a mixer counts in training."""

    class Random(Mixer):
        reads = ("attn_weights",)

        def __init__(self, dim, heads, **settings):
            super().__init__(dim, heads, **settings)
            self.drop = torch.nn.Dropout(0.5)
            self.register_buffer("steps", torch.zeros(()))

        def mix(self, x, context):
            self.steps += self.training
            return self.drop(context.aggregate(x))

    monkeypatch.setitem(MIXERS, "random", Random)
    config = ModelConfig(mixer="random", layers=2, dim=32, heads=4, ffn_dim=32)
    config = replace(config, dropout=0.0, input_dropout=0.0, attention_dropout=0.0)
    model = GraphTransformer(config).train()
    assert faulty_backends(model, batches) == {}
    assert model.training and model.blocks[0].mixer.steps == 0


def test_blocks_that_cannot_be_compiled_are_reported(batches):
    """They run eagerly, which agrees with eager steps."""

    def backend(graph, inputs):
        raise RuntimeError("no such kernel")

    torch._dynamo.reset()
    model = model_of("slice-quantile")
    reason = compile_checked(model, batches[:1], backend=backend)
    assert reason.startswith("UncompiledWarning: batches of ") and "no such kernel" in reason
    assert not model.is_compiled


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no kernel image")])
def test_model_runs_eagerly_after_failed_compilation(error, batches, monkeypatch):
    model = model_of("slice-quantile")
    expected = compute_step(model, batches[0]).predictions

    def compiled(*args, **kwargs):
        raise error

    def compile_blocks(*args, **kwargs) -> bool:
        monkeypatch.setattr(model, "standardised", compiled)
        return True

    monkeypatch.setattr(model, "compile_blocks", compile_blocks)
    monkeypatch.setattr(model, "run_eagerly", lambda: monkeypatch.undo())
    reason = compile_checked(model, batches[:1])
    assert reason == ("out of memory" if isinstance(error, torch.OutOfMemoryError) else "RuntimeError: no kernel image")
    assert torch.equal(compute_step(model, batches[0]).predictions, expected)


def wrong_forward(*args, **kwargs):
    return column_sort.reference(*args, **kwargs).flip(1)


def wrong_backward(x, *args, **kwargs):
    return 2 * column_sort.reference(x, *args, **kwargs).detach() - column_sort.reference(x, *args, **kwargs)


def fail(*args, **kwargs):
    raise RuntimeError("no kernel image is available\nfor execution on the device")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (wrong_forward, "predictions differ by"),
        (wrong_backward, "gradients differ by"),
        (fail, "RuntimeError: no kernel image is available for execution on the device"),
    ],
)
def test_failing_or_wrong_backend_is_reported_by_name(function, reason, batches, monkeypatch):
    model = model_of("slice-ascend")
    monkeypatch.setattr(column_sort.backends["numba"], "function", function)
    faults = faulty_backends(model, batches)
    assert faults == {}  # the traced program does not use this backend
    with programs_disabled():
        faults = faulty_backends(model, batches)
    assert list(faults) == ["column_sort"] and faults["column_sort"].startswith(f"the numba backend: {reason}")
    before = column_sort._fastest_first
    try:
        column_sort.disable("numba")
        with programs_disabled():
            assert faulty_backends(model, batches) == {}
    finally:
        column_sort._fastest_first = before


def test_non_finite_results_are_a_mismatch():
    expected = Step(torch.ones(3, 1), [torch.ones(4)])
    assert step_mismatch(expected, expected) is None
    assert step_mismatch(Step(torch.full((3, 1), torch.nan), [torch.ones(4)]), expected) == "predictions differ by nan%"
    assert step_mismatch(Step(torch.ones(3, 1), [torch.full((4,), torch.inf)]), expected) == "gradients differ by inf%"


def test_no_backend_is_reported_if_plain_torch_gives_nan(batches):
    model = model_of("slice-quantile")
    with torch.no_grad():
        model.head.bias.fill_(torch.nan)
    assert faulty_backends(model, batches) == {}


def test_compiled_steps_are_checked_on_all_batches(batches, monkeypatch):
    """A compiled step that is wrong for the largest molecules only is detected."""
    model = model_of("slice-quantile")
    standardised = model.standardised

    def compile_blocks(*args, **kwargs) -> bool:
        wrong = lambda batch: standardised(batch) * (1.5 if int(batch.lengths.max()) > 5 else 1)  # noqa: E731
        monkeypatch.setattr(model, "standardised", wrong)
        return True

    monkeypatch.setattr(model, "compile_blocks", compile_blocks)
    assert "predictions differ by" in compile_checked(model, batches)
