"""The bounds on how rows become alike, against loops over the weights, and against the stacks they are about."""

import numpy as np
import pytest
import torch

from graphslice.analysis import attention_bound, mixer_stack_outputs, permutation_bound, rows_residual
from graphslice.analysis.spectra import one_inf_norm
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer

PERMUTING = ["csp", "slice-ascend", "slice-interleave", "slice-max", "slice-quantile", "map-only"]


def stack(name: str, layers: int, dim: int, heads: int, std: float, seed: int = 0) -> list:
    torch.manual_seed(seed)
    mixers = [build_mixer(name, dim, heads, layer=n, layers=layers) for n in range(1, layers + 1)]
    for mixer in mixers:
        for parameter in mixer.parameters():
            torch.nn.init.normal_(parameter, std=std)
    return mixers


def column_sum(w: list[list[float]]) -> float:
    return max(sum(abs(row[c]) for row in w) for c in range(len(w[0])))


def both_sums(w: list[list[float]]) -> float:
    return (column_sum(w) * max(sum(map(abs, row)) for row in w)) ** 0.5


def product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


@pytest.mark.parametrize("seed", range(5))
def test_the_median_is_nearly_the_nearest_row(seed):
    generator = np.random.default_rng(seed)
    x = generator.standard_cauchy((9, 3))
    found = rows_residual(x)
    assert found == pytest.approx(one_inf_norm(x - np.median(x, axis=0)))
    rows = [*x, x.mean(0), (x.min(0) + x.max(0)) / 2, *np.median(x, axis=0) + generator.normal(size=(200, 3))]
    assert all(found <= np.sqrt(2) * one_inf_norm(x - row) for row in rows)


def test_rows_that_are_alike_have_no_residual():
    assert rows_residual(np.ones((4, 3))) == 0 == rows_residual(np.zeros((0, 3)))


def test_through_mixers_applies_one_after_the_other():
    mixers, x = stack("softmax", 3, 4, 2, 0.5), torch.randn(5, 4)
    found, rows = mixer_stack_outputs(mixers, x), x.double()[None]
    assert found.shape == (4, 5, 4) and found.dtype == np.float64
    assert all(parameter.dtype == torch.float32 for parameter in mixers[0].parameters())
    for layer, mixer in enumerate(mixers, 1):
        rows = mixer.double()(rows, AttentionContext(torch.tensor([5]), 5))
        np.testing.assert_allclose(found[layer], rows[0].detach(), rtol=1e-6)


@pytest.mark.parametrize("name", PERMUTING)
def test_theorem_1_of_csp_against_loops(name):
    mixers, dim = stack(name, 3, 4, 2, 0.5), 4
    norms = [(column_sum(mixer.value.weight.T.tolist()), both_sums(mixer.output.weight.T.tolist())) for mixer in mixers]
    largest, each = [1.0], [1.0]
    for layers in (1, 2, 3):
        beta, follow = (max(norm[i] for norm in norms[:layers]) for i in (0, 1))
        largest.append(dim ** (layers / 2) * (beta * follow) ** layers)
        each.append(each[-1] * dim**0.5 * norms[layers - 1][0] * norms[layers - 1][1])
    np.testing.assert_allclose(permutation_bound(mixers), np.log10(largest), atol=1e-6)
    np.testing.assert_allclose(permutation_bound(mixers, by_layer=True), np.log10(each), atol=1e-6)
    rows = mixer_stack_outputs(mixers, torch.randn(7, dim))
    logs = np.log10([rows_residual(layer) for layer in rows])
    assert (logs - logs[0] <= permutation_bound(mixers, by_layer=True) + np.log10(2) / 2).all()


@pytest.mark.parametrize("name", ["csp", "slice-ascend", "slice-max", "map-only"])
def test_of_one_channel_theorem_1_is_an_equation(name):
    mixers = stack(name, 6, 1, 1, 1.0)
    logs = np.log10(
        [rows_residual(layer) for layer in mixer_stack_outputs(mixers, torch.tensor([[1.0], [4.0], [9.0]]))]
    )
    np.testing.assert_allclose(logs - logs[0], permutation_bound(mixers, by_layer=True), atol=1e-6)


def test_the_bound_of_attention_against_loops():
    """Dong et al. 2021; small weights and rows that are nearly alike, so that it says something."""
    heads, dim = 2, 4
    mixers, x = stack("softmax", 3, dim, heads, 0.3), 0.1 * torch.randn(6, dim)
    beta, expected, enters = 0.0, [], rows_residual(x.numpy())
    for layers, mixer in enumerate(mixers, 1):
        query, key, value, output = (
            linear.weight.T.tolist() for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        for first in range(0, dim, dim // heads):
            part = slice(first, first + dim // heads)
            scores = product([row[part] for row in query], list(zip(*[row[part] for row in key], strict=True)))
            beta = max(beta, column_sum(scores) * both_sums(product([row[part] for row in value], output[part])))
        gain = 4 * beta * heads / (dim / heads) ** 0.5
        expected.append(gain ** ((3**layers - 1) / 2) * enters ** (3**layers))
    found = attention_bound(mixers, enters)
    np.testing.assert_allclose(found, np.log10([enters, *expected]), rtol=1e-5)
    logs = np.log10([rows_residual(layer) for layer in mixer_stack_outputs(mixers, x)][:3])
    assert (logs <= found[:3] + 1e-9).all() and found[1] < found[0]


def test_maps_of_nothing_but_zeros():
    mixers = stack("softmax", 2, 4, 2, 0.0)
    assert attention_bound(mixers, 1.0).tolist() == [0.0, -np.inf, -np.inf]
    assert permutation_bound(stack("csp", 2, 4, 2, 0.0)).tolist() == [0.0, -np.inf, -np.inf]
