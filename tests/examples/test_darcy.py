"""``examples/darcy.py``: solver compared with a known solution, and training."""

import numpy as np
import pytest
import torch

import darcy


def error_of_a_known_solution(points: int) -> float:
    """Of ``u = sin(pi x) sin(2 pi y)`` where ``a = 1 + x + x y``, whose source follows by hand."""
    line = np.linspace(0, 1, points + 2)
    x, y = np.meshgrid(line, line, indexing="ij")
    u, a = np.sin(np.pi * x) * np.sin(2 * np.pi * y), 1 + x + x * y
    along_x = np.pi * np.cos(np.pi * x) * np.sin(2 * np.pi * y)
    along_y = 2 * np.pi * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
    source = 5 * np.pi**2 * a * u - (1 + y) * along_x - x * along_y
    return np.abs(darcy.solve(a, source[1:-1, 1:-1]) - u[1:-1, 1:-1]).max()


def test_the_error_falls_with_the_square_of_the_spacing():
    coarse, fine = error_of_a_known_solution(15), error_of_a_known_solution(31)
    assert fine < 4e-3
    assert 3.7 < coarse / fine < 4.3


def test_pressures_of_layers():
    """Layers across x: the flow through a face is the same on both of its sides, so u bends where a jumps."""
    a = np.where(np.arange(33)[:, None] < 16, darcy.LOW, darcy.HIGH) * np.ones(33)
    u = darcy.solve(a)
    assert np.abs(u - u[:, ::-1]).max() < 1e-12  # as symmetric as a is
    assert u.min() > 0 and u.argmax() // 31 < 15  # the most where the least can leave
    assert np.abs(darcy.solve(2 * a) - u / 2).max() < 1e-12


def test_fields_have_two_values_and_no_preferred_one():
    fields = darcy.permeability(200, 17, seed=0)
    assert fields.shape == (200, 17, 17) and set(np.unique(fields)) == {darcy.LOW, darcy.HIGH}
    assert abs((fields == darcy.HIGH).mean() - 0.5) < 0.05
    assert np.array_equal(darcy.permeability(3, 33, seed=1)[:, ::2, ::2], darcy.permeability(3, 17, seed=1))


def test_the_finer_grid_holds_the_coarser():
    train, tests = darcy.generate_data(2, 2, grid=7)
    assert train.inputs.shape == (2, 49, 3)
    fine, coarse = tests["finer"], tests["test"]
    torch.testing.assert_close(fine.inputs.view(2, 15, 15, 3)[:, 1::2, 1::2].flatten(1, 2), coarse.inputs)
    torch.testing.assert_close(fine.targets.view(2, 15, 15)[:, 1::2, 1::2].flatten(1), coarse.targets)


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_it_is_learned(learned, norm):
    sizes = ["--steps", 80, "--train", 200, "--test", 50, "--grid", 7, "--norm", norm]
    error, out = learned(darcy, "galerkin", *sizes, score="test")
    assert error < 0.6 * float(out.split("error of ")[1].split()[0])
