"""``examples/burgers.py``: solver compared with an exact solution, files, and training."""

import numpy as np
import pytest
import torch

import burgers
from graphslice.errors import InputError


def cole_hopf(u: np.ndarray, viscosity: float, time: float) -> np.ndarray:
    """The exact solution of functions without a constant part, by way of the heat equation, on their own points."""
    k = 2j * np.pi * np.fft.fftfreq(u.shape[1], 1 / u.shape[1])
    integral = np.fft.ifft(np.divide(np.fft.fft(u), k, out=np.zeros(u.shape, complex), where=k != 0)).real
    heat = np.fft.fft(np.exp(-integral / (2 * viscosity))) * np.exp(viscosity * k**2 * time)
    return (-2 * viscosity * np.fft.ifft(k * heat) / np.fft.ifft(heat)).real


@pytest.mark.parametrize(("viscosity", "time"), [(0.1, 1.0), (0.01, 1.0), (0.01, 0.3)])
def test_the_solver_beside_cole_and_hopf(viscosity, time):
    exact = cole_hopf(burgers.initial_functions(6, 1024, seed=1).numpy(), viscosity, time)
    found = burgers.solve(burgers.initial_functions(6, 256, seed=1), viscosity, time)
    assert np.abs(found.numpy() - exact[:, ::4]).max() < 1e-5


def test_grids_hold_the_same_functions():
    fine, coarse = (burgers.initial_functions(3, points, seed=3) for points in (512, 256))
    torch.testing.assert_close(fine[:, ::2], coarse)
    train, tests = burgers.generate_data(3, 2, points=32, viscosity=0.01)
    assert train.inputs.shape == (3, 32, 3) and train.targets.shape == (3, 32)
    torch.testing.assert_close(tests["finer"].inputs[:, ::2], tests["test"].inputs)
    torch.testing.assert_close(tests["finer"].targets[:, ::2], tests["test"].targets)
    assert burgers.generate_data(1, 1, points=100, viscosity=0.1)[1]["finer"].targets.shape == (1, 200)


def test_it_is_learned(learned, monkeypatch):
    """The mean of the functions that were learned has an error of 1."""
    monkeypatch.setattr(burgers, "SOLVED_ON", 64)
    sizes = ["--steps", 80, "--train", 300, "--test", 50, "--points", 32, "--viscosity", 0.03]
    error, _ = learned(burgers, "galerkin", *sizes, score="test")
    assert error < 0.6


def test_files_of_neuraloperator(learned, tmp_path):
    x = burgers.initial_functions(40, 16, seed=4)
    for part in ("train", "test"):
        y = torch.stack([x] * 17, dim=1)
        torch.save({"x": x, "y": y, "visc": torch.tensor([[0.01]])}, tmp_path / f"burgers_{part}_16.pt")
    error, out = learned(burgers, "softmax", "--steps", 60, "--data", tmp_path, score="test")
    assert "40 functions on 16 points" in out and error < 0.5
    torch.save({"x": x}, tmp_path / "burgers_test_16.pt")
    with pytest.raises(InputError, match="not a torch file with tensors"):
        burgers.main(["--data", str(tmp_path)])
