"""A run on a machine where a kernel fails or lies goes on with plain torch, and says so in one line."""

from __future__ import annotations

import json

import pytest

from graphslice.ops import path_softmax
from graphslice.ops.dispatch import OPERATORS


@pytest.fixture(autouse=True)
def backends_come_back():
    before = {op: op._fastest_first for op in OPERATORS.values()}
    yield
    for op, backends in before.items():
        op._fastest_first = backends


def return_wrong_values(values, path_types, lengths):
    return path_softmax.reference(values, path_types, lengths).roll(1, dims=1)


def fail(*args):
    raise RuntimeError("CUDA error: an illegal instruction was encountered")


@pytest.mark.parametrize(
    ("function", "reason"),
    [(return_wrong_values, "predictions differ by"), (fail, "RuntimeError: CUDA error: an illegal instruction")],
)
def test_a_run_goes_on_without_it(function, reason, cli, demo_csv, tiny_flags, tmp_path, monkeypatch):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    flags = ["--dataset", demo_csv, *tiny_flags]
    assert cli("train", *flags, "-o", right)[0] == 0
    monkeypatch.setattr(path_softmax.backends["numba"], "function", function)
    code, _, err = cli("train", *flags, "-o", wrong)
    lines = [line for line in err.splitlines() if "path_softmax" in line]
    assert code == 0 and len(lines) == 1, err
    assert lines[0].startswith(f"path_softmax: the numba backend: {reason}")
    assert lines[0].endswith("this run uses plain torch instead (graphslice doctor shows details)")
    errors = [json.loads((run / "metrics.json").read_text())["test"]["mae"] for run in (right, wrong)]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


def test_a_run_with_right_kernels_says_nothing(cli, demo_csv, tiny_flags, tmp_path):
    code, _, err = cli("train", "--dataset", demo_csv, *tiny_flags, "-o", tmp_path / "run")
    assert code == 0 and "doctor" not in err
