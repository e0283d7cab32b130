"""``graphslice serve``."""

import json
import re
import signal
import socket
import sys
import time
from http.client import HTTPConnection
from urllib.request import urlopen

import pytest

from graphslice.cli.serve import _load_models
from graphslice.errors import InputError


def test_without_the_extra_the_command_names_it(cli, run_directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, out, err = cli("serve", run_directory)
    assert (code, out) == (2, "") and "pip install 'graphslice[serve]'" in err


def test_model_that_is_given_twice_keeps_its_short_name(monkeypatch, tmp_path):
    monkeypatch.setattr("graphslice.api.model.load", lambda path, device: path)
    runs = [str(tmp_path / name) for name in ("logp", "logp", "a/gap", "b/gap")]
    assert _load_models(runs, "cpu") == [("logp", runs[0]), (runs[2], runs[2]), (runs[3], runs[3])]


@pytest.fixture
def extra():
    for package in ("uvicorn", "fastapi_offline", "prometheus_client"):
        pytest.importorskip(package)


def test_an_occupied_port_is_one_sentence(cli, run_directory, extra):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, out, err = cli("serve", run_directory, "--port", other.getsockname()[1])
    assert (code, out) == (2, "") and "cannot listen" in err and "Address already in use" in err


def test_a_model_that_predicts_no_property_is_not_served(cli, extra):
    code, out, err = cli("serve", "small", "--port", "0")
    assert (code, out) == (2, "") and "predicts no property" in err


def test_a_process_serves_until_ctrl_c(start, wait_for_exit, run_directory, predictor, extra):
    process = start("serve", run_directory, "--port", "0", "--device", "cpu", "--max-molecules", "20")
    line = process.stdout.readline()
    port = int(re.match(r"serving tiny at http://127\.0\.0\.1:(\d+), ", line)[1])
    connection = HTTPConnection("127.0.0.1", port, timeout=100)

    def post(path: str, body: bytes):
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    body = json.dumps({"smiles": ["CCO", "oops"]}).encode()
    status, content = post("/predict", body)
    assert status == 200 and content["rows"][0]["gap_ev_pred"] == pytest.approx(
        predictor.predict("CCO")[0, 0], rel=1e-6
    )
    assert post("/predict", b"x" * 10_000_000)[0] == 413
    connection.close()
    assert post("/draw", b'{"smiles": ["CCO", "oops"]}')[1]["svg"][1] is None  # drawn by a child process
    assert post("/predict", body) == (status, content)
    connection.putrequest("POST", "/predict")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body[:9])
    while b"requests_waiting 1.0" not in urlopen(f"http://127.0.0.1:{port}/metrics").read():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # what is in progress is completed
    time.sleep(0.5)
    connection.send(body[9:])
    assert json.loads(connection.getresponse().read()) == content
    code, _, err = wait_for_exit(process)
    *requests, last = err.splitlines()
    assert (code, last) == (130, "graphslice: stopped")
    statuses = [*zip(("/predict", "/predict", "/draw", "/predict"), ("200", "413", "200", "200"), strict=True)]
    assert [line.split()[1:4] for line in requests if "/metrics" not in line] == [
        ["POST", path, status] for path, status in [*statuses, ("/predict", "200")]
    ]


def test_the_server_is_alive_but_not_ready_while_models_are_loaded(cli, monkeypatch, extra):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    statuses = []

    def load(paths, device):
        for path in ("/health", "/ready"):
            connection = HTTPConnection("127.0.0.1", port, timeout=100)
            connection.request("GET", path)
            statuses.append(connection.getresponse().status)
            connection.close()
        raise InputError("it cannot be loaded")

    monkeypatch.setattr("graphslice.cli.serve._load_models", load)
    code, out, err = cli("serve", "adme", "--port", port)
    assert (code, out, statuses) == (2, "", [200, 503]) and err.endswith("graphslice: it cannot be loaded\n")
