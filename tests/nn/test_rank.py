"""Theorems of the papers on sorting mixers: implicit maps are permutations, and the rank does not collapse."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from graphslice.analysis.rank_collapse import one_inf_norm
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer

SORTING = ["slice-ascend", "slice-interleave", "csp"]


sizes = st.tuples(st.integers(0, 2**20), st.integers(1, 12), st.sampled_from([4, 8]))


def plain(name: str, dim: int, heads: int = 1, weight: torch.Tensor | None = None, **own):
    """Create a mixer in float64 with value projection ``weight`` (default: identity) and no output projection."""
    mixer = build_mixer(name, dim, heads, **own).double().eval()
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(dim))
            linear.bias.zero_()
        if weight is not None:
            mixer.value.weight.copy_(weight.T)
    return mixer


def implicit_maps(mixer, x: torch.Tensor) -> torch.Tensor:
    """Compute the Jacobians ``[C, N, N]`` of every output channel with respect to the same input channel."""
    rows, channels = x.shape[1:]
    jacobian = torch.autograd.functional.jacobian(lambda v: mixer(v, AttentionContext(torch.tensor([rows]), rows)), x)
    return torch.stack([jacobian[0, :, c, 0, :, c] for c in range(channels)])


@pytest.mark.parametrize("name", SORTING)
@settings(max_examples=20)
@given(sizes)
def test_implicit_map_of_a_sort_is_a_permutation(name, problem):
    """The map of every channel is doubly stochastic, sparse and of full rank (Sliceformer, section 3.2)."""
    seed, rows, dim = problem
    x = torch.randn(1, rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    maps = implicit_maps(plain(name, dim), x)
    assert ((maps == 0) | (maps == 1)).all()
    assert (maps.sum(1) == 1).all() and (maps.sum(2) == 1).all()
    assert (torch.linalg.matrix_rank(maps) == rows).all()


@settings(max_examples=20)
@given(sizes)
def test_max_exchange_moves_at_most_two_entries(problem):
    """The values of a channel are well separated; values that nearly tie for the maximum share the exchange."""
    seed, rows, dim = problem
    x = np.random.default_rng(seed).permuted(np.tile(2.0 ** np.arange(rows)[:, None], (1, dim)), axis=0)
    x = torch.from_numpy(x)[None]
    maps = implicit_maps(plain("slice-max", dim), x)
    off = maps - torch.diag_embed(maps.diagonal(dim1=1, dim2=2))
    assert ((off != 0).sum(dim=(1, 2)) <= 2).all() and (maps.sum(1) == 1).all() and (maps.sum(2) == 1).all()
    moved = (plain("slice-max", dim)(x, AttentionContext(torch.tensor([rows]), rows)) != x).sum(1)
    assert (moved <= 2).all()


#: Activation functions with a Lipschitz constant of 1.
F = (lambda x: x, torch.tanh)


def smallest_residual(x: np.ndarray) -> float:
    """Compute a lower bound of ``min_y |x - 1 y^T|_(1,inf)``, with both norms minimised separately."""
    rows, dim = x.shape
    by_columns = np.abs(x - np.median(x, axis=0)).sum(0).max()
    # min t so that for every row sum_c |x_rc - y_c| <= t; variables y [dim], a [rows * dim], t
    cost = np.r_[np.zeros(dim + rows * dim), 1.0]
    above = np.zeros((2 * rows * dim + rows, len(cost)))
    bound = np.zeros(len(above))
    for r in range(rows):
        for c in range(dim):
            i, a = 2 * (r * dim + c), dim + r * dim + c
            above[i, [c, a]], bound[i] = (-1, -1), -x[r, c]
            above[i + 1, [c, a]], bound[i + 1] = (1, -1), x[r, c]
        above[2 * rows * dim + r, dim + r * dim : dim + (r + 1) * dim] = 1
        above[2 * rows * dim + r, -1] = -1
    limits = [(None, None)] * dim + [(0, None)] * (rows * dim + 1)
    return float(np.sqrt(by_columns * linprog(cost, above, bound, bounds=limits).fun))


@pytest.mark.parametrize("name", SORTING)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**20), layers=st.integers(1, 12), dim=st.sampled_from([1, 2, 4]), f=st.sampled_from(F))
@example(seed=0, layers=12, dim=1, f=F[0])
def test_residual_of_stacked_layers_satisfies_theorem_1(name, seed, layers, dim, f):
    """``|res((f CSP)^L x)| <= C^(L/2) (lambda beta)^L |res(x)|`` with lambda = 1 (CSP, eq. 7).

    With one channel and f the identity both sides are equal.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = 7
    x = torch.randn(1, rows, dim, dtype=torch.float64, generator=generator)
    start, beta = smallest_residual(x[0].numpy()), 0.9
    for layer in range(1, layers + 1):
        weight = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        weight *= beta / weight.abs().sum(0).max()
        mixer = plain(name, dim, weight=weight, layer=layer, layers=layers)
        x = f(mixer(x, AttentionContext(torch.tensor([rows]), rows))).detach()
    end, bound = smallest_residual(x[0].numpy()), dim ** (layers / 2) * beta**layers * start
    assert end <= bound * (1 + 1e-6)
    if dim == 1 and f is F[0]:
        assert end >= bound * (1 - 1e-6)


def residuals(name: str, layers: int, seed: int) -> list[float]:
    """Compute residuals, relative to the input, of layers with orthogonal value projections and no skip connections."""
    generator = torch.Generator().manual_seed(seed)
    dim, rows = 8, 16
    x = torch.randn(1, rows, dim, dtype=torch.float64, generator=generator)
    norms = []
    for layer in range(1, layers + 1):
        weight = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))[0]
        mixer = plain(name, dim, weight=weight, layer=layer, layers=layers)
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
