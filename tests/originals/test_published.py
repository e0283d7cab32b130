"""Download of published checkpoints by name, from a local server."""

import http.server
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from graphslice.originals.reading import PUBLISHED

FIXTURE = np.load(Path(__file__).parent.parent / "fixtures" / "graphormer_v2.npz")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Local server with a checkpoint in the published format, and no file at the first address."""
    head = "post_norm/state/"
    state = {k.removeprefix(head): torch.from_numpy(FIXTURE[k]) for k in FIXTURE.files if k.startswith(head)}
    folder = tmp_path / "served"
    folder.mkdir()
    torch.save(state, folder / "pytorch_model.bin")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *args: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{httpd.server_address[1]}/"
        addresses = (address + "missing.bin", address + "pytorch_model.bin")
        monkeypatch.setitem(PUBLISHED, "pcqm4mv2_graphormer_base", addresses)
        yield httpd
        httpd.shutdown()


def test_published_checkpoint_is_downloaded_and_cached(server, cli, tmp_path):
    name, cache = "pcqm4mv2_graphormer_base", tmp_path / "cache"
    code, out, err = cli("import-checkpoint", name, "-o", tmp_path / "run", "--cache", cache)
    assert code == 0, err
    assert "missing.bin" in err and "pytorch_model.bin" in err and "softmax, 3 layers" in out
    code, out, _ = cli("predict", tmp_path / "run", *map(str, FIXTURE["smiles"]))
    found = [float(line.split(",")[1]) for line in out.splitlines()[1:]]
    assert np.abs(np.array(found) - FIXTURE["post_norm/output_fairseq"][:, 0]).max() < 1e-4

    server.shutdown()
    code, _, err = cli("import-checkpoint", name, "-o", tmp_path / "again", "--cache", cache)
    assert code == 0 and "downloaded before" in err


def test_error_without_a_network(monkeypatch, cli, tmp_path):
    monkeypatch.setitem(PUBLISHED, "x", ("http://127.0.0.1:9/a.pt",))
    code, _, err = cli("import-checkpoint", "x", "-o", tmp_path / "run", "--cache", tmp_path)
    assert code == 2 and "cannot download x from http://127.0.0.1:9/a.pt" in err
    assert "on another machine" in err and not (tmp_path / "run").exists()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    code, _, err = cli("import-checkpoint", "pcqm4mv2_graphormer", "-o", tmp_path / "run")
    assert code == 2 and "did you mean 'pcqm4mv2_graphormer_base'?" in err and all(name in err for name in PUBLISHED)
