"""csp, galerkin, fourier, map-only and slice-quantile: what the papers say of them, for random inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from graphslice import InputError
from graphslice.nn.mixers import Structure, build_mixer, check_mixer
from graphslice.nn.mixers.csp import sort_by_first

problems = st.tuples(st.integers(0, 2**20), st.integers(1, 14), st.integers(1, 5), st.integers(1, 4))


def mixer_of(name: str, dim: int = 12, heads: int = 3, **own):
    torch.manual_seed(0)
    return build_mixer(name, dim, heads, **own).double().eval()


def plain(mixer):
    """With identity maps for value and output."""
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(mixer.dim))
            linear.bias.zero_()
    return mixer


def groups_of(rows: int, groups: int) -> list[range]:
    """The first groups take one row more."""
    sizes = [rows // groups + (g < rows % groups) for g in range(groups)]
    return [range(sum(sizes[:g]), sum(sizes[: g + 1])) for g in range(groups)]


@settings(deadline=None, max_examples=80)
@given(problems)
def test_csp_is_the_optimal_assignment_to_the_first_channel(problem):
    """In each group, and its cost: any other permutation moves a channel farther from channel 1."""
    seed, rows, channels, groups = problem
    random = np.random.default_rng(seed)
    v = random.permuted(np.tile(np.arange(rows + 2.0)[:, None], (2, 1, channels)), axis=1) - 3  # no two alike
    v = torch.from_numpy(v + random.uniform(-0.4, 0.4, v.shape))
    lengths = torch.tensor([rows, max(1, rows - 1)])
    found = sort_by_first(v, lengths, groups).numpy()
    for b, length in enumerate(lengths.tolist()):
        np.testing.assert_array_equal(found[b, length:], v[b, length:])
        np.testing.assert_array_equal(found[b, :, 0], v[b, :, 0])
        for group in groups_of(length, groups):
            if not len(group):
                continue
            part = v[b, list(group)].numpy()
            for c in range(channels):
                cost = (part[:, None, 0] - part[None, :, c]) ** 2
                _, chosen = linear_sum_assignment(cost)
                np.testing.assert_array_equal(found[b, list(group), c], part[chosen, c])


def test_rows_that_tie_in_the_first_channel_share():
    v = torch.tensor([[[1.0, 5.0], [2.0, 6.0], [1.0, 9.0], [0.0, 7.0], [8.0, -8.0]]], dtype=torch.float64)
    found = sort_by_first(v.requires_grad_(), torch.tensor([4]))
    assert found[0].tolist() == [[1.0, 6.5], [2.0, 9.0], [1.0, 6.5], [0.0, 5.0], [8.0, -8.0]]
    found[0, 0, 1].backward()
    assert v.grad[0, :, 1].tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    nudged = v.detach().clone()
    nudged[0, 0, 0] += 1e-9
    torch.testing.assert_close(sort_by_first(nudged, torch.tensor([4])), found.detach(), rtol=0, atol=1e-8)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**20), st.integers(2, 7))
def test_csp_is_the_limit_of_sinkhorns_map(seed, rows):
    """At a small temperature the entropic transport plan is the permutation, up to a few hundredths."""
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
    found = sort_by_first(v, torch.tensor([rows]))[0, :, 1].numpy()
    np.testing.assert_allclose(plan @ other, found, atol=0.05)


@pytest.mark.parametrize(
    "own", [{}, {"groups": 3}, {"shifts": "linear"}, {"shifts": "power", "groups": 2}, {"sort": False}]
)
def test_csps_implicit_map_is_a_permutation_of_every_channel(own):
    mixer = plain(mixer_of("csp", **own, layer=2, layers=3))
    x = torch.randn(1, 11, 12, dtype=torch.float64)
    found = mixer(x, Structure(torch.tensor([9]), 11))
    np.testing.assert_array_equal(np.sort(found[0, :9].detach(), axis=0), np.sort(x[0, :9], axis=0))
    jacobian = torch.autograd.functional.jacobian(lambda v: mixer(v, Structure(torch.tensor([9]), 11))[0, :9, 5], x)
    permutation = jacobian[:, 0, :9, 5]
    assert torch.equal(permutation.sum(0), torch.ones(9)) and torch.equal(permutation.sum(1), torch.ones(9))
    assert set(permutation.flatten().tolist()) == {0.0, 1.0}


def test_shifts_alone_turn_every_channel():
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    structure = Structure(torch.tensor([5]), 7)
    mixer = plain(mixer_of("csp", shifts="linear", sort=False))
    found, steps = mixer(x, structure)[0], mixer.steps(torch.tensor([5]))[0].tolist()
    assert steps == [c % 5 for c in range(12)]  # ceil(5 / 12) = 1
    for c, step in enumerate(steps):
        assert torch.equal(found[:5, c], torch.roll(x[0, :5, c], -step))
        assert torch.equal(found[5:, c], x[0, 5:, c])


def test_power_shifts_grow_over_the_channels_of_all_layers():
    layers, lengths = 3, torch.tensor([1000])
    steps = torch.cat([mixer_of("csp", shifts="power", layer=n, layers=layers).steps(lengths)[0] for n in (1, 2, 3)])
    base = 1000 ** (1 / (layers * 12 - 1))
    expected = [int(base**c - 1 + 1e-9) for c in range(layers * 12)]
    assert steps.tolist() == expected and steps[0] == 0 and steps[-1] == 999
    assert (steps.diff() >= 0).all()


@pytest.mark.parametrize("name", ["galerkin", "fourier"])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_projections_against_loops(name, rows):
    mixer = mixer_of(name)
    with torch.no_grad():
        mixer.scales.uniform_(0.5, 2)
        mixer.shifts.uniform_(-1, 1)
    x = torch.randn(1, rows + 2, 12, dtype=torch.float64)
    found = mixer.mixed(x, Structure(torch.tensor([rows]), rows + 2))[0, :rows].detach().numpy()
    q, k, v = (linear(x)[0, :rows].detach().numpy() for linear in (mixer.query, mixer.key, mixer.value))

    def norm(part, which, head):
        part = (part - part.mean(-1, keepdims=True)) / np.sqrt(part.var(-1, keepdims=True) + 1e-5)
        return part * mixer.scales[which, head].detach().numpy() + mixer.shifts[which, head].detach().numpy()

    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        if name == "galerkin":
            expected = q[:, own] @ (norm(k[:, own], 0, head).T @ norm(v[:, own], 1, head)) / rows
        else:
            expected = norm(q[:, own], 0, head) @ norm(k[:, own], 1, head).T @ v[:, own] / rows
        np.testing.assert_allclose(found[:, own], expected, atol=1e-10)


@pytest.mark.parametrize("statistic", ["maximum", "minimum", "fixed", "learnable"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("apart", [False, True])
def test_quantiles_against_numpy(statistic, share, apart):
    mixer = plain(mixer_of("slice-quantile", share=share, statistic=statistic, apart=apart))
    x = torch.randn(2, 8, 12, dtype=torch.float64)
    found = mixer(x, Structure(torch.tensor([6, 1]), 8)).detach().numpy()
    kept = np.arange(12) // 4 < round(3 * share) if apart else np.arange(12) % 4 < round(4 * share)
    places = (np.arange((~kept).sum()) + 0.5) / max(1, (~kept).sum())
    for b, rows in enumerate((6, 1)):
        values = x[b, :rows].numpy()
        np.testing.assert_array_equal(found[b, :rows, kept], values[:, kept].T)
        for place, c in zip(places, np.flatnonzero(~kept), strict=True):
            at = {"maximum": 1.0, "minimum": 0.0}.get(statistic, place)
            np.testing.assert_allclose(found[b, :rows, c], np.quantile(values[:, c], at), atol=1e-6)


@pytest.mark.parametrize("told", ["map", "values"])
def test_what_is_told_is_of_the_map_or_of_the_values(told):
    mixer = plain(mixer_of("slice-quantile", told=told))
    x, map = torch.randn(1, 6, 12, dtype=torch.float64), torch.rand(1, 3, 6, 6, dtype=torch.float64)
    found = mixer(x, Structure(torch.tensor([6]), 6, map=lambda: map))[0]
    mixed = torch.cat([map[0, h] @ x[0, :, 4 * h : 4 * h + 4] for h in range(3)], dim=1)
    for c in range(12):
        of = (mixed if told == "map" else x[0])[:, c]
        torch.testing.assert_close(found[:, c], mixed[:, c] if c % 4 < 2 else of.max().expand(6))


def test_a_learnable_quantile_learns_its_place():
    mixer = plain(mixer_of("slice-quantile", share=0.0, statistic="learnable"))
    x = torch.arange(5.0, dtype=torch.float64)[None, :, None].expand(1, 5, 12).contiguous()
    mixer(x, Structure(torch.tensor([5]), 5)).sum().backward()
    assert (mixer.places.grad > 0).all()


def test_parameters_are_as_the_papers_say():
    """Without query and key a third of the projections before the output one remains."""
    count = {
        name: sum(p.numel() for p in mixer_of(name).parameters())
        for name in ("softmax", "csp", "slice-ascend", "map-only")
    }
    projection = 12 * 12 + 12
    assert count["softmax"] == 4 * projection
    assert count["csp"] == count["slice-ascend"] == count["map-only"] == 2 * projection


@pytest.mark.parametrize(
    ("mixer", "own", "message"),
    [
        ("csp", {"group": 2}, "no setting 'group'.*groups"),
        ("softmax", {"groups": 2}, "it has none"),
        ("csp", {"groups": "two"}, "groups of csp must be of type int, not 'two'"),
        ("csp", {"groups": 2.5}, "must be of type int"),
        ("csp", {"groups": True}, "must be of type int"),
        ("csp", {"shifts": 3}, "must be of type str"),
        ("slice-quantile", {"share": "half"}, "must be of type float"),
        ("slice-quantile", {"apart": "no"}, "must be of type bool"),
    ],
)
def test_unknown_settings(mixer, own, message):
    with pytest.raises(InputError, match=message):
        check_mixer(mixer, own)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("csp", {"groups": 0}, "at least 1"),
        ("csp", {"shifts": "powers"}, "did you mean 'power'|power"),
        ("slice-quantile", {"share": 2.0}, "from 0 to 1"),
        ("slice-quantile", {"statistic": "mean"}, "unknown statistic"),
        ("slice-quantile", {"told": "maps"}, "unknown told 'maps' .did you mean 'map'"),
    ],
)
def test_settings_that_cannot_be(name, own, message):
    with pytest.raises(InputError, match=message):
        build_mixer(name, 12, 3, **own)
