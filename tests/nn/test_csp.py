"""Properties of the mixer csp that its paper states; tests/ops/test_sort_by_first.py has those of its sort."""

import numpy as np
import pytest
import torch
from mixer_samples import mixer_of, without_projections

from graphslice.nn.context import AttentionContext


@pytest.mark.parametrize(
    "own", [{}, {"groups": 3}, {"shifts": "linear"}, {"shifts": "power", "groups": 2}, {"sort": False}]
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


def test_shifts_without_sorting_rotate_every_channel():
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    context = AttentionContext(torch.tensor([5]), 7)
    mixer = without_projections(mixer_of("csp", shifts="linear", sort=False))
    output, shift_steps = mixer(x, context)[0], mixer.shift_steps(torch.tensor([5]))[0].tolist()
    assert shift_steps == [c % 5 for c in range(12)]  # ceil(5 / 12) = 1
    for c, step in enumerate(shift_steps):
        assert torch.equal(output[:5, c], torch.roll(x[0, :5, c], -step))
        assert torch.equal(output[5:, c], x[0, 5:, c])


def test_power_shifts_increase_over_the_channels_of_all_layers():
    layers, lengths = 3, torch.tensor([1000])
    shift_steps = torch.cat(
        [mixer_of("csp", shifts="power", layer=n, layers=layers).shift_steps(lengths)[0] for n in (1, 2, 3)]
    )
    base = 1000 ** (1 / (layers * 12 - 1))
    expected = [int(base**c - 1 + 1e-9) for c in range(layers * 12)]
    assert shift_steps.tolist() == expected and shift_steps[0] == 0 and shift_steps[-1] == 999
    assert (shift_steps.diff() >= 0).all()
