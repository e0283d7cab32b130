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
)

PERMUTING = ["csp", "slice-ascend", "slice-interleave", "slice-max", "slice-quantile", "map-only"]


def stack(name: str, layers: int, dim: int, heads: int, std: float, seed: int = 0) -> list:
    torch.manual_seed(seed)
    mixers = [build_mixer(name, dim, heads, layer=n, layers=layers) for n in range(1, layers + 1)]
    for mixer in mixers:
        for parameter in mixer.parameters():
            torch.nn.init.normal_(parameter, std=std)
    return mixers


def both_norms(w: np.ndarray) -> float:
    return (np.linalg.norm(w, 1) * np.linalg.norm(w, np.inf)) ** 0.5


@pytest.mark.parametrize("seed", range(2))
def test_median_residual_is_within_sqrt_2_of_the_smallest(seed):
    generator = np.random.default_rng(seed)
    x = generator.standard_cauchy((9, 3))
    residual = rows_residual(x)
    assert residual == pytest.approx(one_inf_norm(x - np.median(x, axis=0)))
    rows = [*x, x.mean(0), (x.min(0) + x.max(0)) / 2, *np.median(x, axis=0) + generator.normal(size=(200, 3))]
    assert all(residual <= np.sqrt(2) * one_inf_norm(x - row) for row in rows)


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
    weights = [(mixer.value.weight.detach().numpy().T, mixer.output.weight.detach().numpy().T) for mixer in mixers]
    norms = [(np.linalg.norm(value, 1), both_norms(output)) for value, output in weights]
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
            linear.weight.detach().numpy().T for linear in (mixer.query, mixer.key, mixer.value, mixer.output)
        )
        for first in range(0, dim, dim // heads):
            part = slice(first, first + dim // heads)
            scores = query[:, part] @ key[:, part].T
            beta = max(beta, np.linalg.norm(scores, 1) * both_norms(value[:, part] @ output[part]))
        gain = 4 * beta * heads / (dim / heads) ** 0.5
        expected.append(gain ** ((3**layers - 1) / 2) * residual ** (3**layers))
    bound = attention_bound(mixers, residual)
    np.testing.assert_allclose(bound, np.log10([residual, *expected]), rtol=1e-5)
    logs = np.log10([rows_residual(layer) for layer in mixer_stack_outputs(mixers, x)][:3])
    assert (logs <= bound[:3] + 1e-9).all() and bound[1] < bound[0]


def test_rank_one_residual_matches_manual_computation():
    row = np.array([1.0, -2.0, 3.0])
    assert rank_one_residual(np.tile(row, (5, 1))) == 0 == rank_one_residual(np.zeros((4, 2)))
    assert rank_one_residual(np.zeros((0, 3))) == 0 == rank_one_residual(row[None])
    # Two rows [1, 0] and [-1, 0]: the median is 0, so nothing is subtracted.
    assert rank_one_residual(np.array([[1.0, 0], [-1, 0]])) == 1
    # [3 0; 1 0; 0 0], median [1 0]: column sum 3, row sum 2, against 4 and 3.
    assert rank_one_residual(np.array([[3.0, 0], [1, 0], [0, 0]])) == pytest.approx(np.sqrt(6 / 12))


def test_rows_of_softmax_collapse_and_those_of_sorts_do_not():
    """Without skip connections only rounding is left of the residual after a few layers (Dong et al. 2021)."""
    x = torch.randn(16, 8)
    left = {
        name: rank_one_residual(mixer_stack_outputs(stack(name, 10, 8, 1, 8**-0.5), x)[-1])
        for name in ("softmax", "slice-ascend", "slice-interleave", "csp")
    }
    assert left.pop("softmax") < 1e-12 and min(left.values()) > 0.1, left
