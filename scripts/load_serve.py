"""Load test of ``graphslice serve`` on this machine: wrong rows, requests per second, latency, memory.

python scripts/load_serve.py --model gap --clients 64 --minutes 10

Starts the server on a free port of 127.0.0.1 and stops it at the end. Each client sends requests of 1 to 40 molecules,
one after the other, with and without intervals, and some bad ones. The rows must equal those of the same request sent
alone.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import pandas as pd

from benchmarks.report import memory_of_processes
from graphslice.system.machine import DEMO_CSV

# Requests whose rows are known, and bodies that must be rejected with a status.
_REQUESTS = 200
_BAD: dict[bytes, int] = {
    b'{"smiles": [1]}': 422,
    b'{"smiles": ["\xff"]}': 400,
    b'{"smiles": ["C"], "model": "none"}': 404,
}


@dataclass
class Results:
    """Counts of all clients."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    molecules: int = 0
    wrong: int = 0


def post(connection: HTTPConnection, body: bytes) -> tuple[int, Any]:
    """Send a request to ``/predict``; return the status and the content."""
    connection.request("POST", "/predict", body, {"content-type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def make_requests(seed: int = 0) -> list[bytes]:
    """Make bodies of valid requests; one in twenty molecules is invalid."""
    smiles = pd.read_csv(DEMO_CSV)["smiles"].tolist()
    random.seed(seed)
    bodies = []
    for number in range(_REQUESTS):
        texts = [random.choice(smiles) if random.random() < 0.95 else "oops" for _ in range(random.randint(1, 40))]
        options = {"interval": 90, "nearest": True} if number % 2 else {}
        bodies.append(json.dumps({"smiles": texts, **options}).encode())
    return bodies


def client(
    port: int, expected: dict[bytes, Any], end: float, seed: int, results: Results, lock: threading.Lock
) -> None:
    """Send requests until the time is over, and compare their rows."""
    choose, connection = random.Random(seed), HTTPConnection("127.0.0.1", port, timeout=120)
    bodies = list(expected)
    while time.monotonic() < end:
        bad = choose.random() < 0.05
        body, started = choose.choice(list(_BAD) if bad else bodies), time.monotonic()
        try:
            status, content = post(connection, body)
        except OSError as error:
            connection.close()
            status, content = type(error).__name__, None
        with lock:
            results.statuses[str(status)] += 1
            results.seconds.append(time.monotonic() - started)
            if bad:
                results.wrong += status != _BAD[body]
            elif status == 200:
                results.molecules += len(content["rows"])
                results.wrong += sum(a != b for a, b in zip(content["rows"], expected[body]["rows"], strict=True))
    connection.close()


def run(model: str, clients: int, minutes: float) -> dict[str, Any]:
    """Start a server, load it, and return the figures."""
    command = [sys.executable, "-m", "graphslice", "serve", model, "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline()).group(1))  # type: ignore[union-attr]
        alone = HTTPConnection("127.0.0.1", port, timeout=120)
        expected = {body: post(alone, body)[1] for body in make_requests()}
        results, lock, memories = Results(), threading.Lock(), [memory_of_processes(server.pid)]
        started = time.monotonic()
        arguments = port, expected, started + 60 * minutes
        threads = [
            threading.Thread(target=client, args=(*arguments, seed, results, lock), daemon=True)
            for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        slowest = 0.0
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(10, 6 * minutes))
            asked = time.monotonic()
            health = HTTPConnection("127.0.0.1", port, timeout=120)
            health.request("GET", "/health")
            assert health.getresponse().status == 200
            slowest = max(slowest, time.monotonic() - asked)
            memories.append(memory_of_processes(server.pid))
        seconds = time.monotonic() - started
        alone.close()  # the server has closed the idle connection
        after = [post(alone, body)[1] for body in expected] == list(expected.values())
    finally:
        server.terminate()
        server.wait(30)
    times = sorted(results.seconds)
    return {
        "clients": clients,
        "seconds": round(seconds, 1),
        "requests": len(times),
        "statuses": dict(results.statuses),
        "requests_per_second": round(len(times) / seconds, 1),
        "molecules_per_second": round(results.molecules / seconds, 1),
        "wrong_rows": results.wrong,
        "same_rows_afterwards": after,
        "median_seconds": round(times[len(times) // 2], 3),
        "p99_seconds": round(times[int(len(times) * 0.99)], 3),
        "slowest_health_seconds": round(slowest, 3),
        "memory_mb": {
            name: round(memories[place] / 2**20)
            for name, place in (("first", 0), ("middle", len(memories) // 2), ("last", -1))
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gap", help="run directory, model file or packaged model (default: gap)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(run(options.model, options.clients, options.minutes), indent=2))
