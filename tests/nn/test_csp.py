"""Properties of the mixer csp that its paper states; tests/ops/test_sort_by_first.py has those of its sort."""

import math

import numpy as np
import pytest
import torch
from mixer_samples import mixer_of, without_projections

from graphslice.nn.context import AttentionContext


@pytest.mark.parametrize(
    "own", [{}, {"groups": 0}, {"groups": 3}, {"shifts": "heads", "groups": 2}, {"shifts": "power"}, {"sort": False}]
)
def test_implicit_map_is_a_permutation_of_every_channel(own):
    mixer = without_projections(mixer_of("csp", **own, layer=2, layers=3))
    x = torch.randn(1, 11, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    context = AttentionContext(torch.tensor([9]), 11)
    output = mixer(x, context)
    np.testing.assert_array_equal(np.sort(output[0, :9].detach(), axis=0), np.sort(x[0, :9], axis=0))
    jacobian = torch.autograd.functional.jacobian(lambda v: mixer(v, context)[0, :9, 5], x)
    permutation = jacobian[:, 0, :9, 5]
    assert torch.equal(permutation.sum(0), torch.ones(9)) and torch.equal(permutation.sum(1), torch.ones(9))
    assert set(permutation.flatten().tolist()) == {0.0, 1.0}


def shift_matrix(rows, step):
    """Return ``[[0, I_J], [I_(N - J), 0]]`` (CSP, eq. 3)."""
    matrix = torch.zeros(rows, rows, dtype=torch.float64)
    matrix[:step, rows - step :] = torch.eye(step)
    matrix[step:, : rows - step] = torch.eye(rows - step)
    return matrix


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("shifts", ["linear", "heads"])
def test_shifts_without_sorting_are_the_matrices_of_equation_3(shifts, rows):
    """12 channels of 3 heads: C (m - 1) / D = 3 (m - 1) for ``heads``."""
    x = torch.randn(1, rows + 2, 12, dtype=torch.float64)
    output = without_projections(mixer_of("csp", shifts=shifts, sort=False))(
        x, AttentionContext(torch.tensor([rows]), rows + 2)
    )[0]
    for c in range(12):
        step = (c * math.ceil(rows / 12) if shifts == "linear" else 12 * (c // 4) // 4) % rows
        assert torch.equal(output[:rows, c], shift_matrix(rows, step) @ x[0, :rows, c])
        assert torch.equal(output[rows:, c], x[0, rows:, c])


def test_power_shifts_increase_over_the_channels_of_all_layers():
    layers, lengths = 3, torch.tensor([1000])
    shift_steps = torch.cat(
        [mixer_of("csp", shifts="power", layer=n, layers=layers).shift_steps(lengths)[0] for n in (1, 2, 3)]
    )
    base = 1000 ** (1 / (layers * 12 - 1))
    expected = [int(base**c - 1 + 1e-9) for c in range(layers * 12)]
    assert shift_steps.tolist() == expected and shift_steps[0] == 0 and shift_steps[-1] == 999
    assert (shift_steps.diff() >= 0).all()
