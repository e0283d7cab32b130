"""``graphslice doctor``: the tables, the JSON and the exit code."""

import pytest
from json_documents import document_of

from graphslice.doctor import diagnosis
from graphslice.doctor.checks import OperatorCheck


@pytest.fixture
def two_operators(monkeypatch):
    monkeypatch.setattr(diagnosis, "operators_on", lambda device: ["column_sort", "max_exchange"])


def test_a_machine_that_is_well(cli, two_operators):
    code, out, _ = cli("doctor", "--device", "cpu", "--json")
    found = document_of("doctor", out)
    assert (code, found["problems"], found["faults"], found["device"]) == (0, [], {}, "cpu")
    assert found["machine"]["torch"] and found["machine"]["cores"] >= 1
    backends = {(o["operator"], o["dtype"]): o["backend"] for o in found["operators"]}
    dtypes = {"float32": "numba", "bfloat16": "torch", "float16": "torch"}
    assert backends == {(name, dtype): dtypes[dtype] for name in ("column_sort", "max_exchange") for dtype in dtypes}


def test_a_machine_that_is_not(cli, two_operators, monkeypatch):
    monkeypatch.setattr(diagnosis, "check_operator", lambda name, _: [OperatorCheck(name, "float32", "?", "no kernel")])
    monkeypatch.setattr(diagnosis, "faulty_backends", lambda *_: {"read_out": "predictions differ by 12%"})
    code, out, err = cli("doctor", "--device", "cpu")
    progress = ["operator column_sort (1 of 2)", "operator max_exchange (2 of 2)", "model"]
    assert err.splitlines() == [f"checking {what}" for what in progress]  # without a terminal, a line for each check
    assert code == 1 and "max_exchange in float32: no kernel" in out and "all checks passed" not in out
    assert "problem: model: read_out: predictions differ by 12%" in out
