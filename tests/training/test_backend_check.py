"""A run falls back to plain torch, with one line of output, if a kernel fails or computes wrong values."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphslice.ops import path_softmax
from graphslice.ops.dispatch import OPERATORS
from graphslice.program.kernels import attention
from graphslice.program.simd.lanes import store_scalar


@pytest.fixture(autouse=True)
def restore_backends():
    programs = path_softmax.backends["numba"].function._program
    before = {op: op._fastest_first for op in OPERATORS.values()}
    programs.cache_clear()
    yield
    programs.cache_clear()
    for op, backends in before.items():
        op._fastest_first = backends


def without_weights(samples, values, path_types, lengths, out, count, heads, width):
    """A wrong kernel: all weights are 0."""
    for i in range(samples * heads * width * width):
        store_scalar(out, i, np.float32(0))


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(without_weights, "predictions differ by"), (None, "TypeError: None is not a callable object")],
    ids=["wrong", "failing"],
)
def test_faulty_kernel_is_replaced_by_plain_torch(kernel, reason, cli, demo_csv, tiny_flags, tmp_path, monkeypatch):
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    flags = ["--dataset", demo_csv, *tiny_flags]
    assert cli("train", *flags, "-o", right)[0] == 0
    path_softmax.backends["numba"].function._program.cache_clear()
    monkeypatch.setattr(attention, "path_softmax", kernel)
    code, _, err = cli("train", *flags, "-o", wrong)
    lines = [line for line in err.splitlines() if "path_softmax" in line]
    assert code == 0 and len(lines) == 1, err
    assert lines[0].startswith(f"path_softmax: the numba backend: {reason}")
    assert lines[0].endswith("this run uses plain torch instead (graphslice doctor shows details)")
    errors = [json.loads((run / "metrics.json").read_text())["test"]["mae"] for run in (right, wrong)]
    assert errors[1] == pytest.approx(errors[0], rel=0.02)
