"""Burgers' equation: predict the solution after one unit of time from the initial condition.

    python examples/burgers.py --mixer galerkin
    python examples/burgers.py --mixer galerkin --data FOLDER     # burgers_train_16.pt and burgers_test_16.pt

``u_t + u u_x = viscosity u_xx`` on the periodic unit interval. Initial conditions are drawn as by Li et al. (Fourier
Neural Operator, 2021) from ``N(0, 625 (-Laplace + 25)^-2)`` without its constant part. A row of the model is a point:
its value and its position on the circle. The score is the relative L2 error: ``test`` on as many points as in training,
``finer`` on twice as many. FOLDER holds files of the package neuraloperator, with 16 points and viscosity 0.01.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from experiment import Samples, parse_options, positive, positive_number, run_main
from functions import functions_as_rows, operator_options, read_tensors, train_and_evaluate
from graphslice.errors import InputError

#: Minimal number of points on which the equation is solved; at least twice as many as in the training set are used.
SOLVED_ON = 256
#: Points that are needed to resolve a front, times the viscosity; with fewer points the solution oscillates.
POINTS_OF_A_FRONT = 0.5
#: With a smaller viscosity the solution takes hours.
MIN_VISCOSITY = 0.0005
#: With a larger viscosity only rounding errors remain after one unit of time.
MAX_VISCOSITY = 0.5


def initial_functions(count: int, points: int, seed: int) -> Tensor:
    """Draw random functions on ``points`` uniform points of the unit interval: float64 ``[count, points]``."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.arange(1, SOLVED_ON // 2, dtype=torch.float64)  # the same functions on every grid
    deviation = 25 / ((2 * math.pi * k) ** 2 + 25)
    waves = torch.randn(2, count, len(k), dtype=torch.float64, generator=generator) * deviation * math.sqrt(2)
    angles = 2 * math.pi * k[:, None] * torch.arange(points, dtype=torch.float64) / points
    return waves[0] @ angles.cos() + waves[1] @ angles.sin()


def solve(u: Tensor, viscosity: float, time: float = 1.0) -> Tensor:
    """Solve Burgers' equation with a Fourier spectral method.

    A third of the modes is set to zero (dealiasing), diffusion is integrated exactly, and the nonlinear term by the
    fourth-order Runge-Kutta method. The step is half of the longest stable one for the largest ``|u|``, which never
    grows.

    Args:
        u: initial condition, float64 ``[B, N]`` on uniform points of the periodic unit interval.
        viscosity: positive; a smaller viscosity needs more points.
        time: integration time.

    Returns:
        Solution at ``time``, float64 ``[B, N]``.
    """
    n = u.shape[1]
    steps = math.ceil(time * max(100.0, 1.5 * n * u.abs().max().item()))
    step = time / steps
    k = torch.arange(n // 2 + 1, dtype=torch.float64)
    kept = k < n / 3  # products of these modes are not aliased to one of them
    half = torch.exp(-viscosity * (2 * math.pi * k) ** 2 * step / 2)  # decay by diffusion in half a step
    derivative = -1j * math.pi * k * kept  # of -u^2 / 2

    def slope(modes: Tensor) -> Tensor:
        return derivative * torch.fft.rfft(torch.fft.irfft(modes, n) ** 2)

    modes = torch.fft.rfft(u) * kept
    for _ in range(steps):
        a = slope(modes)
        b = slope(half * (modes + step / 2 * a))
        c = slope(half * modes + step / 2 * b)
        d = slope(half**2 * modes + step * half * c)
        modes = half**2 * modes + step / 6 * (half**2 * a + 2 * half * (b + c) + d)
    return torch.fft.irfft(modes, n)


def samples(before: Tensor, after: Tensor) -> Samples:
    """Represent functions as rows of value and position on the circle, ``[n, N, 3]``."""
    angles = 2 * math.pi * torch.arange(before.shape[1]) / before.shape[1]
    circle = torch.stack([angles.cos(), angles.sin()], dim=-1)
    return functions_as_rows(before, circle, after)


def generate_data(train: int, test: int, points: int, viscosity: float) -> tuple[Samples, dict[str, Samples]]:
    """Generate the training set and the test sets, ``test`` on ``points`` points and ``finer`` on twice as many.

    Raises:
        InputError: if the viscosity is too small or too large.
    """
    if viscosity < MIN_VISCOSITY:
        raise InputError(f"a viscosity of {viscosity:g} needs too fine a grid: give at least {MIN_VISCOSITY:g}")
    if viscosity > MAX_VISCOSITY:
        raise InputError(f"a viscosity of {viscosity:g} leaves nothing to learn: give at most {MAX_VISCOSITY:g}")
    fine = max(SOLVED_ON, 2 * points, math.ceil(POINTS_OF_A_FRONT / viscosity))
    fine += -fine % (2 * points)  # a multiple of both grids
    before = initial_functions(train + test, fine, seed=0)
    after = solve(before, viscosity)

    def on(grid: int, which: slice) -> Samples:
        return samples(before[which, :: fine // grid], after[which, :: fine // grid])

    held_out = slice(train, None)
    return on(points, slice(train)), {"test": on(points, held_out), "finer": on(2 * points, held_out)}


def from_files(folder: Path) -> tuple[Samples, dict[str, Samples]]:
    """Read the files of neuraloperator: ``x [n, 16]``, and ``y [n, 17, 16]`` from time 0 to 1."""
    train, test = (read_tensors(folder / f"burgers_{part}_16.pt") for part in ("train", "test"))
    return samples(train["x"], train["y"][:, -1]), {"test": samples(test["x"], test["y"][:, -1])}


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = operator_options(__doc__, train=1_000, test=200)
    parser.add_argument("--points", type=positive, default=64, help="points of a function")
    help_text = "Li et al. use 0.1, the files of neuraloperator 0.01"
    parser.add_argument("--viscosity", type=positive_number, default=0.01, help=help_text)
    parsed = parse_options(parser, arguments)
    if parsed.data:
        train, tests = from_files(parsed.data)
    else:
        train, tests = generate_data(parsed.train, parsed.test, parsed.points, parsed.viscosity)
    return train_and_evaluate(parsed, train, tests)


if __name__ == "__main__":
    run_main(main)
