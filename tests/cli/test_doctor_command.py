"""``graphslice doctor``: the tables, the JSON and the exit code."""

import json

import pytest

from graphslice.doctor import diagnosis
from graphslice.doctor.presets import PresetCheck, check_step


def check_eager_step(name, device, dtype, compiled):
    return PresetCheck(name, "slice-quantile", "float32") if compiled else check_step(name, device, dtype, compiled)


@pytest.fixture
def without_compiler(monkeypatch):
    """Compilation takes half a minute; tests/doctor/test_presets.py has it."""
    monkeypatch.setattr(diagnosis, "check_step", check_eager_step)


@pytest.fixture
def two_operators(monkeypatch):
    monkeypatch.setattr(diagnosis, "operators_on", lambda device: ["column_sort", "max_exchange"])


def test_a_machine_that_is_well(cli, without_compiler, two_operators):
    code, out, _ = cli("doctor", "--preset", "small", "--device", "cpu", "--json")
    found = json.loads(out)
    assert (code, found["problems"], found["device"]) == (0, [], "cpu")
    assert found["machine"]["torch"] and found["machine"]["cores"] >= 1
    backends = {(o["operator"], o["dtype"]): o["backend"] for o in found["operators"]}
    dtypes = {"float32": "numba", "bfloat16": "torch", "float16": "torch"}
    assert backends == {(name, dtype): dtypes[dtype] for name in ("column_sort", "max_exchange") for dtype in dtypes}
    (preset,) = found["presets"]
    assert preset["preset"] == "small" and preset["eager_seconds"] > 0


def dies(name, *arguments):
    import os

    os.abort()


def test_a_machine_that_is_not(cli, monkeypatch):
    monkeypatch.setattr(diagnosis, "check_operator", dies)
    monkeypatch.setattr(diagnosis, "operators_on", lambda device: ["max_exchange"])
    monkeypatch.setattr(diagnosis, "check_step", dies)
    code, out, err = cli("doctor", "--preset", "small", "--device", "cpu")
    progress = ["checking operator max_exchange (1 of 1)", "checking training step of small (1 of 1)"]
    assert err.splitlines() == progress  # without a terminal, a line for each check
    assert code == 1 and "max_exchange in ?: the process was killed by SIGABRT" in out
    assert "preset small: the process was killed by SIGABRT" in out and "all checks passed" not in out


def test_what_does_not_exist(cli):
    code, out, err = cli("doctor", "--preset", "smal")
    assert (code, out) == (2, "") and "unknown preset 'smal' (did you mean 'small'?)" in err
    code, out, err = cli("doctor", "--device", "cuda:7")
    assert (code, out) == (2, "") and "this machine has no device 'cuda:7'" in err
