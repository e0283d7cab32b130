"""The image of the Dockerfile, built and started where Docker is."""

import json
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Prints the response to a request from inside, as the container has no network.
REQUEST = """
import urllib.request, sys
request = urllib.request.Request("http://127.0.0.1:8000/predict", sys.argv[1].encode())
request.add_header("content-type", "application/json")
print(urllib.request.urlopen(request).read().decode())
"""


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (done.stdout + done.stderr).strip()


def has_docker() -> bool:
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_docker(), reason="there is no Docker")
def test_the_image_serves_adme_without_a_network_and_without_root():
    image = docker("build", "--quiet", str(ROOT)).splitlines()[-1]
    container = docker("run", "--detach", "--network", "none", image)
    try:
        end = time.monotonic() + 300
        while (health := docker("inspect", "--format", "{{.State.Health.Status}}", container)) != "healthy":
            assert time.monotonic() < end, f"{health}: {docker('logs', container)}"
            time.sleep(1)
        assert docker("exec", container, "id", "-u") == "1000"
        body = json.dumps({"smiles": ["CCO", "oops"]})
        first, second = json.loads(docker("exec", container, "python", "-c", REQUEST, body))["rows"]
        assert first["error"] is None and first["solubility_pred"] is not None and second["error"] is not None
        log = docker("logs", container)
        assert "serving adme" in log and "POST /predict 200 2 molecules" in log and "CCO" not in log
        docker("stop", "--time", "30", container)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", container) == "143"  # not 137: it stops by itself
    finally:
        docker("rm", "--force", container)
