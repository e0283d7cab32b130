"""Tests of scripts/paper_figures, which draw the papers' figures."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.split(".")[0] in ("paper_figures", "reproduce_figures")]:
        sys.modules.pop(name)


@pytest.mark.parametrize("mixer", ["softmax", "csp", "slice-quantile", "galerkin"])
def test_measured_residuals_are_below_the_proved_bounds(scripts, make_predictor, mixer):
    from paper_figures.depth import MEASURED, bounds, depth_residuals
    from paper_figures.panels import demo_molecules

    predictor = make_predictor(mixer=mixer, layers=3)
    graphs = demo_molecules(2)
    found, shares, enters = depth_residuals(predictor, graphs)
    assert list(found) == list(shares) == list(MEASURED) and enters > 0
    assert all(len(values) == 4 and values[0] == 0 for values in found.values())
    proved = bounds(predictor, enters)
    assert len(proved) == {"softmax": 1, "galerkin": 0}.get(mixer, 2)
    for values in proved.values():
        assert (found["its mixers alone"] <= values + np.log10(2)).all()


def test_timings_are_interleaved(scripts):
    from paper_figures.speed import interleaved_rates

    called, now = [], [0.0]

    def waits(name, seconds):
        def run():
            called.append(name)
            now[0] += seconds * (10 if len(called) == 3 else 1)  # one timing is disturbed

        return run

    found = interleaved_rates({("a",): waits("a", 0.5), ("b",): waits("b", 0.25)}, 5, lambda: now[0])
    assert all(set(called[i : i + 2]) == {"a", "b"} for i in range(0, 10, 2)) and len(called) == 10
    np.testing.assert_allclose(found[("a",)], 2)
    np.testing.assert_allclose(found[("b",)], 4)


def test_only_training_steps_change_weights(scripts):
    import torch

    from paper_figures.speed import Steps

    steps, x = Steps("slice-max", "cpu"), torch.randn(1, 3, 256)
    before = [parameter.clone() for parameter in steps.blocks.parameters()]
    steps.step(x, "inference")
    assert all(map(torch.equal, before, steps.blocks.parameters()))
    steps.step(x, "training")
    assert not all(map(torch.equal, before, steps.blocks.parameters()))


def test_figure_is_written(scripts, monkeypatch, tmp_path, capsys):
    import reproduce_figures

    monkeypatch.setattr(sys, "argv", ["reproduce_figures", "smoothing", "--trials", "1", "--out", str(tmp_path)])
    reproduce_figures.main()
    assert (tmp_path / "smoothing.png").exists() and "| 1,000,000 |" in capsys.readouterr().out
