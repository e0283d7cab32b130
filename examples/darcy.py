"""Darcy flow: predict the pressure in a porous square from its permeability.

    python examples/darcy.py --mixer galerkin
    python examples/darcy.py --mixer galerkin --norm none --steps 1000     # the block of the Galerkin transformer
    python examples/darcy.py --mixer galerkin --data FOLDER     # darcy_{train_16,test_16,test_32}.pt

``-div(a grad u) = 1`` on the unit square, ``u = 0`` on its boundary. The permeability a is 12 where a random function
is positive and 3 elsewhere, as in Li et al. (Fourier Neural Operator, 2021): ``N(0, (-Laplace + 9)^-2)`` with zero
normal derivative at the boundary. A row of the model is a point: its a and its two coordinates. The score is the
relative L2 error: ``test`` on as many points as in training, ``finer`` on about twice as many per side. FOLDER holds
files of the package neuraloperator.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from experiment import Samples, parse_options, positive, run_main
from functions import functions_as_rows, operator_options, read_tensors, train_and_evaluate

#: The two values of the permeability.
LOW, HIGH = 3.0, 12.0

#: Cosine modes of the random functions, per side.
WAVES = 32


def permeability(count: int, points: int, seed: int) -> np.ndarray:
    """Draw random permeabilities (3 or 12) on a grid including its boundary: float64 ``[count, points, points]``."""
    weights = np.random.default_rng(seed).standard_normal((count, WAVES, WAVES))
    k = np.arange(WAVES)
    weights /= math.pi**2 * (k[:, None] ** 2 + k**2) + 9
    weights *= np.where(k, math.sqrt(2), 1) * np.where(k, math.sqrt(2), 1)[:, None]
    cosines = np.cos(math.pi * k[:, None] * np.linspace(0, 1, points))
    return np.where(cosines.T @ weights @ cosines > 0, HIGH, LOW)


def solve(a: np.ndarray, source: np.ndarray | float = 1.0) -> np.ndarray:
    """Solve ``-div(a grad u) = source`` by finite differences, with the harmonic mean of a between two points.

    Args:
        a: positive, float64 ``[n + 2, n + 2]`` on a uniform grid of the unit square, including its boundary.
        source: at the inner points ``[n, n]``, or one value for all.

    Returns:
        ``u`` at the inner points, float64 ``[n, n]``; the error is of second order in the spacing where a is smooth.
    """
    n = len(a) - 2
    down = 2 * a[:-1, 1:-1] * a[1:, 1:-1] / (a[:-1, 1:-1] + a[1:, 1:-1])  # [n + 1, n], between neighbours
    right = 2 * a[1:-1, :-1] * a[1:-1, 1:] / (a[1:-1, :-1] + a[1:-1, 1:])  # [n, n + 1]
    # The matrix is symmetric with three bands: the diagonal, the next column, and the next row at offset n.
    bands = np.zeros((n + 1, n * n))
    bands[0] = (down[:-1] + down[1:] + right[:, :-1] + right[:, 1:]).ravel()
    bands[n, :-n] = -down[1:-1].ravel()
    next_column = -right[:, 1:].copy()
    next_column[:, -1] = 0  # the last point of a row is no neighbour of the first one of the next row
    bands[1] += next_column.ravel()
    load = np.broadcast_to(source, (n, n)).ravel() / (n + 1) ** 2
    return solveh_banded(bands, load, lower=True).reshape(n, n)


def samples(a: Tensor, u: Tensor, begin: int) -> Samples:
    """Represent functions ``[n, N, N]`` as rows of value and coordinates, ``[n, N * N, 3]``.

    The coordinates are ``(i + begin) / (N + begin)``.
    """
    points = a.shape[1]
    line = (torch.arange(points) + begin) / (points + begin)
    coordinates = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).flatten(0, 1)
    return functions_as_rows(a.flatten(1), coordinates, u.flatten(1))


def generate_data(train: int, test: int, grid: int) -> tuple[Samples, dict[str, Samples]]:
    """Generate the training set and the test sets, ``test`` on ``grid`` and ``finer`` on 2 ``grid`` + 1 inner points.

    The numbers of points are per side. All equations are solved on the finer grid.
    """
    fields = permeability(train + test, 2 * grid + 3, seed=0)
    u = torch.from_numpy(np.stack([solve(a) for a in fields]))
    a = torch.from_numpy(fields[:, 1:-1, 1:-1])

    def on(which: slice, step: int) -> Samples:
        return samples(a[which, step - 1 :: step, step - 1 :: step], u[which, step - 1 :: step, step - 1 :: step], 1)

    held_out = slice(train, None)
    return on(slice(train), 2), {"test": on(held_out, 2), "finer": on(held_out, 1)}


def from_files(folder: Path) -> tuple[Samples, dict[str, Samples]]:
    """Read the files of neuraloperator: ``x [n, 16, 16]`` (true where a is large), ``y``; ``finer`` has 32 points."""
    names = {"train": "darcy_train_16.pt", "test": "darcy_test_16.pt", "finer": "darcy_test_32.pt"}
    parts = {name: read_tensors(folder / file) for name, file in names.items()}
    datasets = {name: samples(part["x"].float(), part["y"], 0) for name, part in parts.items()}
    return datasets.pop("train"), datasets


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = operator_options(__doc__, train=1_000, test=100, batch=16, steps=250)
    parser.add_argument("--grid", type=positive, default=15, help="inner points per side")
    parsed = parse_options(parser, arguments)
    train, tests = from_files(parsed.data) if parsed.data else generate_data(parsed.train, parsed.test, parsed.grid)
    return train_and_evaluate(parsed, train, tests)


if __name__ == "__main__":
    run_main(main)
