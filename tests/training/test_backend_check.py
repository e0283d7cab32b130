"""A run falls back to plain torch, with one line of output, if a kernel fails or computes wrong values."""

from __future__ import annotations

import json

import pytest

from graphslice.ops import path_softmax
from graphslice.ops.dispatch import OPERATORS


@pytest.fixture(autouse=True)
def restore_backends():
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
def test_faulty_kernel_is_replaced_by_plain_torch(function, reason, cli, demo_csv, tiny_flags, tmp_path, monkeypatch):
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


def test_correct_kernels_are_not_reported(cli, demo_csv, tiny_flags, tmp_path):
    code, _, err = cli("train", "--dataset", demo_csv, *tiny_flags, "-o", tmp_path / "run")
    assert code == 0 and "doctor" not in err
