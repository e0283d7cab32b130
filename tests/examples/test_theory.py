"""``examples/theory.py``: bounds on rank collapse, compared with loops over the weights and with stacked mixers."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import graphslice as gs
import theory
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer
from graphslice.ops import sort_by_first
from theory import (
    attention_bound,
    group_sort,
    mixer_stack_outputs,
    one_inf_norm,
    permutation_bound,
    rank_one_residual,
    rows_residual,
    transport,
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


@pytest.mark.parametrize("groups", [1, 3])
def test_transport_matches_the_loop_of_sinkhorn_and_knopp(groups):
    """CSP, eqs. 8 and 9: exp, then rows and columns divided by their sums in turn, within each group."""
    generator = np.random.default_rng(0)
    reference, column = generator.normal(size=(2, 9))
    expected = np.zeros((9, 9))
    for start in range(0, 9, 9 // groups):
        rows = range(start, start + 9 // groups)
        block = [[np.exp(reference[i] * column[j] / 0.5) for j in rows] for i in rows]
        for _ in range(4):
            block = [[value / sum(line) for value in line] for line in block]
            sums = [sum(line[j] for line in block) for j in range(len(block))]
            block = [[value / sums[j] for j, value in enumerate(line)] for line in block]
        expected[start : start + len(block), start : start + len(block)] = block
    np.testing.assert_allclose(transport(reference, column, 0.5, 4, groups), expected, atol=1e-12)
    converged = transport(reference, column, 0.5, 2_000, groups)
    np.testing.assert_allclose([converged.sum(0), converged.sum(1)], 1, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_transport_tends_to_the_permutation_of_csp(groups):
    """CSP, Theorem 2: against the linear assignment of scipy, the sort, and the mixer."""
    generator = np.random.default_rng(groups)
    reference, column = generator.permutation(8) / 2, generator.permutation(8) / 2 - 1
    expected = np.zeros((8, 8))
    for rows in np.array_split(np.arange(8), groups):
        i, j = linear_sum_assignment(-np.outer(reference[rows], column[rows]))
        expected[rows[i], rows[j]] = 1
    np.testing.assert_array_equal(group_sort(reference, column, groups), expected)
    distances = [np.abs(transport(reference, column, tau, 20_000, groups) - expected).max() for tau in (1, 0.1, 0.02)]
    assert distances[0] > 0.4 > distances[1] > 0.01 > distances[2], distances
    v = torch.from_numpy(np.stack([reference, column], axis=1))
    mixed = sort_by_first(v[None], torch.tensor([8]), groups)[0]
    np.testing.assert_allclose(expected @ column, mixed[:, 1])


def test_transport_of_equal_rows_tends_to_the_mean_of_csp():
    """The optimal transport is not unique then; in the limit tied rows share their values, as in the mixer."""
    reference, column = np.array([0.0, 2.0, 2.0, 5.0]), np.array([3.0, -1.0, 4.0, 1.0])
    limit = transport(reference, column, 0.02, 20_000)
    v = torch.from_numpy(np.stack([reference, column], axis=1))
    np.testing.assert_allclose(limit @ column, sort_by_first(v[None], torch.tensor([4]))[0, :, 1], atol=1e-3)
    np.testing.assert_allclose(limit @ column, [-1, 2, 2, 4], atol=1e-3)


def test_figures_are_drawn_from_models(make_predictor, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(theory, "ITERATIONS", (5, 500))
    predictors = [make_predictor(8.0, mixer=name, layers=2) for name in ("softmax", "csp", "slice-ascend")]
    graphs = [gs.smiles_to_graph(smiles) for smiles in ("CC(=O)Nc1ccccc1C", "OCC(N)c1cc(F)cnc1")]
    theory.draw_depth(predictors, graphs, tmp_path / "depth.png")
    theory.draw_sinkhorn(predictors[1], graphs, tmp_path / "sinkhorn.png")
    theory.draw_maps(predictors, tmp_path / "maps.png")
    assert {path.name for path in tmp_path.iterdir()} == {"depth.png", "sinkhorn.png", "maps.png"}
    residuals, unique, errors, maps = split_lines(capsys.readouterr().out, (6, 1, 2, 4))
    assert unique == ["2 of 2 molecules have no equal values in the first channel of the first layer"]
    trained = permutation_bound([block.mixer for block in predictors[1].model.blocks])
    assert residuals[3].startswith(f"| `csp` | trained | {trained[1]:.1f} | {trained[2]:.1f} |")
    few, many = ([float(cell) for cell in line.split("|")[2:-1]] for line in errors)
    assert min(many) < 0.2 < min(few)
    assert maps[0].startswith("| slice-ascend, of P V | 12 | 12 | 1 | 1.00 to 1.00 |")


def split_lines(text: str, counts: tuple[int, ...]) -> list[list[str]]:
    lines = text.splitlines()
    assert len(lines) == sum(counts), text
    return [[lines.pop(0) for _ in range(count)] for count in counts]
