"""Properties of the mixer csp that its paper states, for random inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixer_samples import mixer_of, without_projections
from scipy.optimize import linear_sum_assignment

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.csp import sort_by_first

problems = st.tuples(st.integers(0, 2**20), st.integers(1, 14), st.integers(1, 5), st.integers(1, 4))


def groups_of(rows: int, groups: int) -> list[range]:
    """Split rows into groups; the first groups have one row more."""
    sizes = [rows // groups + (g < rows % groups) for g in range(groups)]
    return [range(sum(sizes[:g]), sum(sizes[: g + 1])) for g in range(groups)]


@settings(max_examples=80)
@given(problems)
def test_csp_is_the_optimal_assignment_to_the_first_channel(problem):
    """In each group any other permutation has a larger distance to channel 1."""
    seed, rows, channels, groups = problem
    random = np.random.default_rng(seed)
    v = random.permuted(np.tile(np.arange(rows + 2.0)[:, None], (2, 1, channels)), axis=1) - 3  # all different
    v = torch.from_numpy(v + random.uniform(-0.4, 0.4, v.shape))
    lengths = torch.tensor([rows, max(1, rows - 1)])
    output = sort_by_first(v, lengths, groups).numpy()
    for b, length in enumerate(lengths.tolist()):
        np.testing.assert_array_equal(output[b, length:], v[b, length:])
        np.testing.assert_array_equal(output[b, :, 0], v[b, :, 0])
        for group in groups_of(length, groups):
            if not len(group):
                continue
            part = v[b, list(group)].numpy()
            for c in range(channels):
                cost = (part[:, None, 0] - part[None, :, c]) ** 2
                _, chosen = linear_sum_assignment(cost)
                np.testing.assert_array_equal(output[b, list(group), c], part[chosen, c])


def test_rows_that_tie_in_the_first_channel_get_the_mean():
    v = torch.tensor([[[1.0, 5.0], [2.0, 6.0], [1.0, 9.0], [0.0, 7.0], [8.0, -8.0]]], dtype=torch.float64)
    output = sort_by_first(v.requires_grad_(), torch.tensor([4]))
    assert output[0].tolist() == [[1.0, 6.5], [2.0, 9.0], [1.0, 6.5], [0.0, 5.0], [8.0, -8.0]]
    output[0, 0, 1].backward()
    assert v.grad[0, :, 1].tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    nudged = v.detach().clone()
    nudged[0, 0, 0] += 1e-9
    torch.testing.assert_close(sort_by_first(nudged, torch.tensor([4])), output.detach(), rtol=0, atol=1e-8)


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.integers(2, 7))
def test_csp_is_the_low_temperature_limit_of_sinkhorn(seed, rows):
    """At a small temperature the entropic transport plan is close to the permutation."""
    random = np.random.default_rng(seed)
    first = np.sort(random.permutation(rows) + random.uniform(-0.2, 0.2, rows))[random.permutation(rows)]
    other = random.permutation(rows) + random.uniform(-0.2, 0.2, rows)
    cost, temperature = (first[:, None] - other[None, :]) ** 2, 0.05
    f, g = np.zeros(rows), np.zeros(rows)
    for _ in range(500):
        f = -temperature * np.logaddexp.reduce((g[None, :] - cost) / temperature, axis=1)
        g = -temperature * np.logaddexp.reduce((f[:, None] - cost) / temperature, axis=0)
    plan = np.exp((f[:, None] + g[None, :] - cost) / temperature)
    v = torch.tensor(np.stack([first, other], axis=1))[None]
    output = sort_by_first(v, torch.tensor([rows]))[0, :, 1].numpy()
    np.testing.assert_allclose(plan @ other, output, atol=0.05)


@pytest.mark.parametrize(
    "own", [{}, {"groups": 3}, {"shifts": "linear"}, {"shifts": "power", "groups": 2}, {"sort": False}]
)
def test_implicit_map_is_a_permutation_of_every_channel(own):
    mixer = without_projections(mixer_of("csp", **own, layer=2, layers=3))
    x = torch.randn(1, 11, 12, dtype=torch.float64)
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
