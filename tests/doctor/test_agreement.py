"""A backend that fails or lies is found, by name; those that compute right are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graphslice.chem.molecule import read_smiles
from graphslice.config import ModelConfig
from graphslice.data.store import GraphStore
from graphslice.doctor.agreement import (
    Step,
    compile_checked,
    compute_step,
    extreme_batches,
    faulty_backends,
    step_mismatch,
)
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.ops import aggregate_sort, column_sort
from graphslice.ops.dispatch import OPERATORS, reference_only
from graphslice.ops.program import programs_disabled

SMILES = ["C", "CC(=O)Oc1ccccc1C(=O)O", "CCO", "c1ccccc1", "CN1CCC[C@H]1c1cccnc1", "[Na+].[Cl-]", "CC(C)C", "OCC#N"]


@pytest.fixture
def batches():
    store = GraphStore.from_arrays(*read_smiles(SMILES))
    return extreme_batches(store, np.arange(len(store)), {})


def model_of(mixer: str) -> GraphTransformer:
    torch.manual_seed(0)
    return GraphTransformer(ModelConfig(mixer=mixer, layers=2, dim=32, heads=4, ffn_dim=32))


def test_the_batches_hold_the_smallest_and_the_largest(batches):
    assert [sorted(batch.lengths.tolist()) for batch in batches] == [[1, 2, 3, 4], [4, 6, 12, 13]]


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_backends_are_left_alone(mixer, dtype, batches):
    assert faulty_backends(model_of(mixer), batches, dtype) == {}


@pytest.fixture
def replicates():
    """Batches of which the last is four rows of one molecule, as of a table with several measurements of each."""
    store = GraphStore.from_arrays(*read_smiles(["C", "CC", "CCC", "CCCC", *["CCCCCc1ccccc1"] * 4]))
    return extreme_batches(store, np.arange(len(store)), {})


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_right_backends_are_left_alone_where_the_largest_molecules_are_replicates(mixer, replicates):
    assert faulty_backends(model_of(mixer), replicates) == {}


@pytest.mark.parametrize("function", [lambda *args: wrong_forward(*args), lambda *args: wrong_backward(*args)])
def test_a_faulty_backend_is_found_where_the_largest_molecules_are_replicates(function, replicates, monkeypatch):
    monkeypatch.setattr(aggregate_sort.backends["numba"], "function", function)
    with programs_disabled():
        assert list(faulty_backends(model_of("slice-ascend"), replicates)) == ["aggregate_sort"]


def test_without_a_compiler_nothing_is_said_to_be_compiled(batches, monkeypatch):
    monkeypatch.setattr("graphslice.nn.model.warn_of_missing_compiler", lambda kind: True)
    assert "no compiler" in compile_checked(model_of("slice-quantile"), batches[:1])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no kernel image")])
def test_what_cannot_be_compiled_goes_on_without(error, batches, monkeypatch):
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
    return aggregate_sort.reference(*args, **kwargs).flip(1)


def wrong_backward(weights, v, *args, **kwargs):
    return 2 * aggregate_sort.reference(weights, v, *args, **kwargs).detach() - aggregate_sort.reference(
        weights, v, *args, **kwargs
    )


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
def test_a_backend_that_fails_or_lies_is_named(function, reason, batches, monkeypatch):
    model = model_of("slice-ascend")
    monkeypatch.setattr(aggregate_sort.backends["numba"], "function", function)
    found = faulty_backends(model, batches)
    assert found == {}  # the model has no use for it, but where it is no program
    with programs_disabled():
        found = faulty_backends(model, batches)
    assert list(found) == ["aggregate_sort"] and found["aggregate_sort"].startswith(f"the numba backend: {reason}")
    aggregate_sort_before = aggregate_sort._fastest_first
    try:
        aggregate_sort.disable("numba")
        with programs_disabled():
            assert faulty_backends(model, batches) == {}
    finally:
        aggregate_sort._fastest_first = aggregate_sort_before


def test_a_backend_that_the_model_does_not_use_is_not_asked(batches, monkeypatch):
    monkeypatch.setattr(column_sort.backends["numba"], "function", fail)
    assert faulty_backends(model_of("galerkin"), batches) == {}


def test_a_step_changes_neither_gradients_nor_mode(batches):
    model = model_of("slice-max").train()
    compute_step(model, batches[0])
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_a_step_are_those_of_finite_differences(batches):
    model = model_of("softmax").double()
    model.pairs.double()
    weights = (1 + torch.arange(4) * (5**0.5 - 1) / 2 % 1)[:, None]
    gradients = compute_step(model, batches[0]).gradients
    at = [name for name, _ in model.named_parameters()].index("head.bias")
    assert gradients[at].item() == pytest.approx(weights.sum().item(), abs=1e-6)
    weight = model.head.weight
    found = gradients[at - 1][0, 0].item()
    totals = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight[0, 0] += step
            totals.append((model.eval().standardised(batches[0]) * weights).sum().item())
            weight[0, 0] -= step
    assert found == pytest.approx((totals[0] - totals[1]) / 2e-5, rel=1e-4)


def test_what_is_not_finite_disagrees():
    right = Step(torch.ones(3, 1), [torch.ones(4)])
    assert step_mismatch(right, right) is None
    assert step_mismatch(Step(torch.full((3, 1), torch.nan), [torch.ones(4)]), right) == "predictions differ by nan%"
    assert step_mismatch(Step(torch.ones(3, 1), [torch.full((4,), torch.inf)]), right) == "gradients differ by inf%"


def test_only_references_gives_the_backends_back():
    before = {name: op._fastest_first for name, op in OPERATORS.items()}
    with pytest.raises(KeyError), reference_only():
        assert column_sort.choose(torch.ones(1, 2, 3)) == "torch"
        raise KeyError
    assert before == {name: op._fastest_first for name, op in OPERATORS.items()}
    with reference_only(but=(column_sort, "numba")):
        assert column_sort.choose(torch.ones(1, 2, 3)) == "numba"
        assert OPERATORS["gelu"].choose(torch.ones(2, 32)) == "torch"


def test_where_plain_torch_gives_no_numbers_no_kernel_is_blamed(batches):
    model = model_of("slice-quantile")
    with torch.no_grad():
        model.head.bias.fill_(torch.nan)
    assert faulty_backends(model, batches) == {}


def test_compiled_steps_are_tried_on_all_batches(batches, monkeypatch):
    """One that lies about the largest molecules alone is found out."""
    for tried, reason in ((batches[:1], None), (batches, "predictions differ by")):
        model = model_of("slice-quantile")
        standardised = model.standardised

        def lying(batch, standardised=standardised):
            return standardised(batch) * (1.5 if int(batch.lengths.max()) > 5 else 1)

        def compile_blocks(*args, model=model, lying=lying, **kwargs) -> bool:
            monkeypatch.setattr(model, "standardised", lying)
            return True

        monkeypatch.setattr(model, "compile_blocks", compile_blocks)
        found = compile_checked(model, tried)
        assert found is None if reason is None else reason in found
