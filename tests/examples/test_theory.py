"""``examples/theory.py``: bounds on rank collapse, compared with loops over the weights and with stacked mixers."""

import numpy as np
import pytest
import torch

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer
from theory import (
    attention_bound,
    mixer_stack_outputs,
    one_inf_norm,
    permutation_bound,
    rank_one_residual,
    rows_residual,
    singular_spectrum,
)

SORTING = ["slice-ascend", "slice-interleave", "csp"]
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
def test_median_residual_is_within_sqrt_2_of_the_smallest(seed):
    generator = np.random.default_rng(seed)
    x = generator.standard_cauchy((9, 3))
    residual = rows_residual(x)
    assert residual == pytest.approx(one_inf_norm(x - np.median(x, axis=0)))
    rows = [*x, x.mean(0), (x.min(0) + x.max(0)) / 2, *np.median(x, axis=0) + generator.normal(size=(200, 3))]
    assert all(residual <= np.sqrt(2) * one_inf_norm(x - row) for row in rows)


def test_equal_rows_have_zero_residual():
    assert rows_residual(np.ones((4, 3))) == 0 == rows_residual(np.zeros((0, 3)))


def test_stack_outputs_match_sequential_application():
    mixers, x = stack("softmax", 3, 4, 2, 0.5), torch.randn(5, 4)
    outputs, rows = mixer_stack_outputs(mixers, x), x.double()[None]
    assert outputs.shape == (4, 5, 4) and outputs.dtype == np.float64
    assert all(parameter.dtype == torch.float32 for parameter in mixers[0].parameters())
    for layer, mixer in enumerate(mixers, 1):
        rows = mixer.double()(rows, AttentionContext(torch.tensor([5]), 5))
        np.testing.assert_allclose(outputs[layer], rows[0].detach(), rtol=1e-6)


@pytest.mark.parametrize("name", PERMUTING)
def test_permutation_bound_matches_theorem_1_of_csp(name):
    mixers, dim = stack(name, 3, 4, 2, 0.5), 4
    norms = [(column_sum(mixer.value.weight.T.tolist()), both_sums(mixer.output.weight.T.tolist())) for mixer in mixers]
    largest, cumulative = [1.0], [1.0]
    for layers in (1, 2, 3):
        beta, follow = (max(norm[i] for norm in norms[:layers]) for i in (0, 1))
        largest.append(dim ** (layers / 2) * (beta * follow) ** layers)
        cumulative.append(cumulative[-1] * dim**0.5 * norms[layers - 1][0] * norms[layers - 1][1])
    np.testing.assert_allclose(permutation_bound(mixers), np.log10(largest), atol=1e-6)
    np.testing.assert_allclose(permutation_bound(mixers, by_layer=True), np.log10(cumulative), atol=1e-6)
    rows = mixer_stack_outputs(mixers, torch.randn(7, dim))
    logs = np.log10([rows_residual(layer) for layer in rows])
    assert (logs - logs[0] <= permutation_bound(mixers, by_layer=True) + np.log10(2) / 2).all()


@pytest.mark.parametrize("name", ["csp", "slice-ascend", "slice-max", "map-only"])
def test_permutation_bound_is_tight_for_one_channel(name):
    mixers = stack(name, 6, 1, 1, 1.0)
    logs = np.log10(
        [rows_residual(layer) for layer in mixer_stack_outputs(mixers, torch.tensor([[1.0], [4.0], [9.0]]))]
    )
    np.testing.assert_allclose(logs - logs[0], permutation_bound(mixers, by_layer=True), atol=1e-6)


def test_attention_bound_matches_loops():
    """Dong et al. 2021, with small weights and nearly equal rows, so that the bound is not vacuous."""
    heads, dim = 2, 4
    mixers, x = stack("softmax", 3, dim, heads, 0.3), 0.1 * torch.randn(6, dim)
    beta, expected, residual = 0.0, [], rows_residual(x.numpy())
    for layers, mixer in enumerate(mixers, 1):
        query, key, value, output = (
            linear.weight.T.tolist() for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        for first in range(0, dim, dim // heads):
            part = slice(first, first + dim // heads)
            scores = product([row[part] for row in query], list(zip(*[row[part] for row in key], strict=True)))
            beta = max(beta, column_sum(scores) * both_sums(product([row[part] for row in value], output[part])))
        gain = 4 * beta * heads / (dim / heads) ** 0.5
        expected.append(gain ** ((3**layers - 1) / 2) * residual ** (3**layers))
    bound = attention_bound(mixers, residual)
    np.testing.assert_allclose(bound, np.log10([residual, *expected]), rtol=1e-5)
    logs = np.log10([rows_residual(layer) for layer in mixer_stack_outputs(mixers, x)][:3])
    assert (logs <= bound[:3] + 1e-9).all() and bound[1] < bound[0]


def test_zero_weights_give_minus_infinity():
    mixers = stack("softmax", 2, 4, 2, 0.0)
    assert attention_bound(mixers, 1.0).tolist() == [0.0, -np.inf, -np.inf]
    assert permutation_bound(stack("csp", 2, 4, 2, 0.0)).tolist() == [0.0, -np.inf, -np.inf]


def test_rank_one_residual_matches_manual_computation():
    row = np.array([1.0, -2.0, 3.0])
    assert rank_one_residual(np.tile(row, (5, 1))) == 0 == rank_one_residual(np.zeros((4, 2)))
    assert rank_one_residual(np.zeros((0, 3))) == 0 == rank_one_residual(row[None])
    # Two rows [1, 0] and [-1, 0]: the median is 0, so nothing is subtracted.
    assert rank_one_residual(np.array([[1.0, 0], [-1, 0]])) == 1
    # [3 0; 1 0; 0 0], median [1 0]: column sum 3, row sum 2, against 4 and 3.
    assert rank_one_residual(np.array([[3.0, 0], [1, 0], [0, 0]])) == pytest.approx(np.sqrt(6 / 12))


def test_singular_spectrum_matches_eigenvalues_of_gram_matrix():
    x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    gram = np.linalg.eigvalsh(x.T.astype(float) @ x)[::-1]
    np.testing.assert_allclose(singular_spectrum(x) ** 2, gram, rtol=1e-5)


def residuals(name: str, layers: int, seed: int) -> list[float]:
    """Compute residuals, relative to the input, of layers with orthogonal value projections and no skip connections."""
    generator = torch.Generator().manual_seed(seed)
    dim, rows = 8, 16
    x = torch.randn(1, rows, dim, dtype=torch.float64, generator=generator)
    norms = []
    for layer in range(1, layers + 1):
        weight = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))[0]
        mixer = build_mixer(name, dim, 1, layer=layer, layers=layers).double().eval()
        mixer.value.weight.data, mixer.output.weight.data = weight.T, torch.eye(dim, dtype=torch.float64)
        for linear in (mixer.value, mixer.output):
            torch.nn.init.zeros_(linear.bias)
        if name == "softmax":
            with torch.no_grad():
                for linear in (mixer.query, mixer.key):
                    linear.weight.copy_(torch.randn(dim, dim, dtype=torch.float64, generator=generator) / dim**0.5)
                    linear.bias.zero_()
        norms.append(one_inf_norm((x[0] - x[0].median(0).values).numpy()))
        x = mixer(x, AttentionContext(torch.tensor([rows]), rows)).detach()
    norms.append(one_inf_norm((x[0] - x[0].median(0).values).numpy()))
    return [norm / norms[0] for norm in norms]


@pytest.mark.parametrize("seed", range(5))
def test_softmax_without_skips_collapses_doubly_exponentially_and_sorts_do_not(seed):
    """Once small, the logarithm of the softmax residual about doubles per layer (Dong et al. 2021)."""
    softmax = [value for value in residuals("softmax", 5, seed) if value > 1e-13]
    logs = np.log(softmax)
    small = np.flatnonzero(logs < np.log(0.05))
    assert len(small) >= 2 and all(logs[i] <= 1.8 * logs[i - 1] for i in small[1:])
    for name in SORTING:
        assert residuals(name, 12, seed)[-1] > 0.1
