"""Galerkin and Fourier attention: formulas, cost and projection properties."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from mixer_samples import without_projections

from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import build_mixer, projections


@pytest.mark.parametrize("name", ["galerkin", "fourier"])
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(("size", "dtype"), [(4, torch.float64), (16, torch.float32)])  # references, kernels
def test_projections_match_loops(name, rows, size, dtype):
    torch.manual_seed(0)
    mixer = build_mixer(name, 3 * size, 3).to(dtype).eval()
    with torch.no_grad():
        mixer.scales.uniform_(0.5, 2)
        mixer.shifts.uniform_(-1, 1)
    x = torch.randn(1, rows + 2, 3 * size, dtype=dtype)
    output = mixer.mix(x, AttentionContext(torch.tensor([rows]), rows + 2))[0, :rows].detach().numpy()
    q, k, v = (linear(x)[0, :rows].double().detach().numpy() for linear in (mixer.query, mixer.key, mixer.value))

    def norm(part, which, head):
        part = (part - part.mean(-1, keepdims=True)) / np.sqrt(part.var(-1, keepdims=True) + 1e-5)
        return part * mixer.scales[which, head].detach().numpy() + mixer.shifts[which, head].detach().numpy()

    for head in range(3):
        own = slice(size * head, size * head + size)
        if name == "galerkin":
            expected = q[:, own] @ (norm(k[:, own], 0, head).T @ norm(v[:, own], 1, head)) / rows
        else:
            expected = norm(q[:, own], 0, head) @ norm(k[:, own], 1, head).T @ v[:, own] / rows
        np.testing.assert_allclose(output[:, own], expected, atol=1e-10 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("name", ["galerkin", "fourier"])
def test_cost_is_linear_in_the_number_of_rows(name):
    from torch.utils.flop_counter import FlopCounterMode

    mixer, counts = build_mixer(name, 16, 2).double().eval(), []
    for rows in (256, 512, 1024):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            mixer(torch.randn(1, rows, 16, dtype=torch.float64), AttentionContext(torch.tensor([rows]), rows))
        counts.append(counter.get_total_flops())
    assert all(after / before == pytest.approx(2) for before, after in pairwise(counts))


def galerkin_on_the_line(value: list[list[float]], rows: int = 2001):
    """Apply Galerkin attention to Q = K = {1, x} on (-1, 1) and V = Q ``value``, an example of the author's blog.

    Returns:
        The points, Q and the output without layer norms, which would mix the columns of {1, x} within each row.
    """
    x = torch.linspace(-1, 1, rows, dtype=torch.float64)
    basis = torch.stack([torch.ones_like(x), x], dim=1)
    mixer = without_projections(build_mixer("galerkin", 2, 1).double().eval())
    with torch.no_grad():
        for linear, weight in ((mixer.query, torch.eye(2)), (mixer.key, torch.eye(2)), (mixer.value, value)):
            linear.weight.copy_(torch.as_tensor(weight).T)
            linear.bias.zero_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projections, "head_norm", lambda part, scales, shifts, index: part)
        return x, basis, mixer(basis[None], AttentionContext(torch.tensor([rows]), rows))[0].detach()


@pytest.mark.parametrize("function", [np.exp, np.cos, lambda x: x**3 - x**2 + 0.5, np.abs])
def test_galerkin_attention_can_represent_the_projection_onto_1_and_x(function):
    """K^T V / n is diagonal, and a linear map of the output gives the L2 projection."""
    x, basis, output = galerkin_on_the_line([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(output[:, 0], 1, atol=1e-12)  # Q (1 0; 0 1/3)
    np.testing.assert_allclose(output[:, 1], x / 3, atol=1e-3)
    f = function(x.numpy())
    p0, p1 = np.trapezoid(f, x) / 2, 3 / 2 * np.trapezoid(x.numpy() * f, x)
    projection = output.numpy() @ np.array([p0, 3 * p1])
    best = basis.numpy() @ np.linalg.lstsq(basis.numpy(), f, rcond=None)[0]
    np.testing.assert_allclose(projection, best, atol=3e-3)


def test_galerkin_output_has_no_constant_if_the_values_have_none():
    """Counterexample: with V = {c x, d x} the output holds only multiples of x, so 1 cannot be represented."""
    x, _, output = galerkin_on_the_line([[0.0, 0.0], [2.0, -3.0]])
    assert torch.linalg.matrix_rank(output) == 1
    np.testing.assert_allclose(output, x[:, None] * torch.tensor([2.0, -3.0]) / 3, atol=3e-3)
    best = output.numpy() @ np.linalg.lstsq(output.numpy(), np.ones(len(x)), rcond=None)[0]
    assert np.abs(best).max() < 1e-10  # the best approximation of the constant is 0


def test_galerkin_with_layer_norms_is_a_projection_onto_the_columns_of_q():
    """Every column of the output is a linear combination of the columns of Q."""
    torch.manual_seed(0)
    mixer = build_mixer("galerkin", 12, 3).double().eval()
    x = torch.randn(1, 40, 12, dtype=torch.float64)
    with torch.no_grad():
        mixed, q = mixer.mix(x, AttentionContext(torch.tensor([40]), 40))[0], mixer.query(x)[0]
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        combination = torch.linalg.lstsq(q[:, own], mixed[:, own]).solution
        torch.testing.assert_close(q[:, own] @ combination, mixed[:, own])
        k, v = (
            torch.nn.functional.layer_norm(part[0, :, own], (4,)).detach() for part in (mixer.key(x), mixer.value(x))
        )
        torch.testing.assert_close(combination, k.T @ v / 40)
