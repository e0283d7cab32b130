"""Models of the Hugging Face Hub, against a small server on this machine that speaks the Hub's protocol."""

import base64
import hashlib
import json
import pickle
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny import TINY

import graphslice as gs
from graphslice.system.hub import _download, local_path, pinned_name

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

SMILES = ["CCO", "c1ccccc1"]


class Hub(ThreadingHTTPServer):
    """Repositories by name: commits by hash, each with the bytes of its files; the last one is main."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.sizes: dict[str, int] = {}  # that the server claims, by file
        self.requested: list[str] = []
        self.down = False  # whether every request ends in an error of the server

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        commits = self.repositories.setdefault(repository, {})
        commit = hashlib.sha1(f"{repository} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        return commit


class _Requests(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_) -> None:
        pass

    def reply(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.split("?")[0].removeprefix("/api/models")
        self.server.requested.append(path)
        if self.server.down:
            return self.reply({"error": "Service unavailable"}, 503)
        match = re.fullmatch(r"/(\w+/[\w-]+)/(revision|tree|resolve)/([^/]+)(?:/(.+))?", path)
        repository, kind, revision, name = match.groups() if match else ("", "", "", "")
        if repository in self.server.private and self.headers["Authorization"] != "Bearer secret":
            return self.reply({"error": "Invalid username or password."}, 401, X_Error_Code="RepoNotFound")
        commits = self.server.repositories.get(repository)
        if commits is None:
            return self.reply({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        commit = [*commits][-1] if revision == "main" else revision
        if commit not in commits:
            return self.reply({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
        files = commits[commit]
        sizes = {file: self.server.sizes.get(file, len(content)) for file, content in files.items()}
        if kind == "revision":
            siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
            return self.reply({"id": repository, "sha": commit, "siblings": siblings})
        if kind == "tree":
            return self.reply([{"type": "file", "path": f, "size": s, "oid": "0" * 40} for f, s in sizes.items()])
        etag = hashlib.sha1(files[name]).hexdigest()
        return self.reply(files[name], ETag=f'"{etag}"', X_Repo_Commit=commit)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requested.append(self.path)
        if self.path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        if self.headers["Authorization"] != "Bearer secret":
            return self.reply({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            values = json.loads(body)
            repository = f"{values['organization']}/{values['name']}"
            self.server.repositories.setdefault(repository, {"0" * 40: {".gitattributes": b""}})
            if values.get("visibility") == "private" or values.get("private"):
                self.server.private.add(repository)
            return self.reply({"url": f"http://127.0.0.1/{repository}"})
        if "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            return self.reply(
                {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
            )
        repository = self.path.removeprefix("/api/models/").split("/commit/")[0]
        files = dict(list(self.server.repositories[repository].values())[-1])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.server.commit(repository, files)
        return self.reply({"commitUrl": f"http://127.0.0.1/{repository}/commit/{commit}", "commitOid": commit})


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        for name, value in {
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_PROGRESS_BARS": True,
        }.items():
            monkeypatch.setattr(constants, name, value)
        _download.cache_clear()
        yield server
        server.shutdown()
    _download.cache_clear()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shared(server, run_directory) -> str:
    """A repository with the files of a run, and files that no model needs."""
    files = files_of(run_directory) | {"evil.pkl": pickle.dumps(print), "modeling.py": b"raise SystemExit"}
    return server.commit("user/tiny", files)


def test_models_are_loaded_by_name_and_revision(shared, server, run_directory, cli):
    model, expected = gs.load("hf://user/tiny"), gs.load(run_directory).predict(SMILES)
    np.testing.assert_array_equal(model.predict(SMILES), expected)
    assert model.describe()["source"] == f"hf://user/tiny@{shared}"
    assert gs.load(run_directory).describe()["source"] is None
    server.commit("user/tiny", {})
    np.testing.assert_array_equal(gs.load(f"hf://user/tiny@{shared}").predict(SMILES), expected)
    code, out, _ = cli("predict", f"hf://user/tiny@{shared}", *SMILES)
    assert code == 0 and len(out.splitlines()) == 3
    transformer = gs.GraphSliceTransformer(f"hf://user/tiny@{shared}").fit(SMILES)
    np.testing.assert_array_equal(transformer.transform(SMILES), model.embed(SMILES))


def test_only_files_of_a_model_are_downloaded(shared, server):
    folder = Path(local_path("hf://user/tiny"))
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.yaml", "metrics.json"}
    assert not any("evil" in path or "modeling" in path or "last.ckpt" in path for path in server.requested)
    assert pinned_name(folder) == f"hf://user/tiny@{shared}"


def test_the_commit_is_printed_and_kept_by_a_fine_tuned_model(shared, demo_csv, tmp_path, cli):
    flags = ("--trainer.max_steps", "1", "--trainer.accelerator", "cpu", "--trainer.baselines", "off")
    code, _, err = cli("train", "--dataset", demo_csv, "--init-from", "hf://user/tiny", "-o", tmp_path / "run", *flags)
    assert code == 0 and f"model: hf://user/tiny@{shared}" in err
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["init_from"] == f"hf://user/tiny@{shared}"


def test_without_a_connection_a_complete_copy_is_used(shared, server, monkeypatch, cli):
    name = f"hf://user/tiny@{shared}"
    expected = gs.load("hf://user/tiny").predict(SMILES)
    monkeypatch.setattr(server, "down", True)
    _download.cache_clear()
    np.testing.assert_array_equal(gs.load(name).predict(SMILES), expected)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    _download.cache_clear()
    np.testing.assert_array_equal(gs.load(name).predict(SMILES), expected)
    (Path(local_path(name)) / "model.safetensors").unlink()
    _download.cache_clear()
    code, _, err = cli("predict", name, "CCO")
    assert code == 2 and "cannot reach http://127.0.0.1:1 for hf://user/tiny" in err
    monkeypatch.setenv("HF_TOKEN", "secret")
    code, _, err = cli("push", "gap", "user/tiny")
    assert code == 2 and "cannot reach http://127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf://tiny", "does not name a model on the Hub"),
        ("hf://user/tiny@../../secret", "does not name a model on the Hub"),
        ("hf://user/tiny@a/../../secret", "does not name a model on the Hub"),
        ("hf://user/hidden", "no access to hf://user/hidden: .*authenticated"),
        ("hf://user/tiny@v9", "no access to hf://user/tiny: .*Revision Not Found"),
        ("hf://user/pickles", "holds no model of GraphSlice"),
        ("hf://user/pickled", "not a model of GraphSlice"),
        ("hf://user/large", "not downloaded"),
    ],
)
def test_unusable_models_are_rejected_in_a_sentence(name, words, shared, server, tmp_path, cli):
    config = gs.RunConfig().to_yaml().encode()
    server.commit("user/pickles", {"README.md": b"", "pytorch_model.bin": pickle.dumps(print)})
    server.commit("user/pickled", {"model.safetensors": pickle.dumps(print), "config.yaml": config})
    server.commit("user/large", {"member-1/model.safetensors": b"", "config.yaml": config})
    server.commit("user/hidden", {"model.safetensors": b""})
    server.private.add("user/hidden")
    server.sizes = {"member-1/model.safetensors": 1 << 40}
    code, out, err = cli("predict", name, "CCO")
    assert (code, out) == (2, "") and re.search(words, err) and len(err.splitlines()) <= 2, err
    written = {path.name for path in tmp_path.glob("hub/**/snapshots/*/*")}
    assert written == ({"model.safetensors", "config.yaml"} if "pickled" in name else set())
    assert not list(tmp_path.glob("hub/**/*.incomplete"))


def test_a_pushed_model_predicts_the_same_and_holds_no_molecules(
    server, run_directory, demo_csv, demo_rows, monkeypatch, cli
):
    monkeypatch.setenv("HF_TOKEN", "secret")
    code, out, err = cli("push", run_directory, "user/new", "--license", "mit")
    assert code == 0, err
    commits = server.repositories["user/new"]
    commit, files = list(commits.items())[-1]
    assert out.split() == [f"hf://user/new@{commit}"] and "user/new" in server.private
    assert set(files) == {".gitattributes", "README.md", "model.safetensors", "config.yaml", "metrics.json"}
    private = [str(demo_csv.parent), *(smiles for smiles in demo_rows["smiles"] if len(smiles) > 12)]
    assert not any(text.encode() in contents for contents in files.values() for text in private)
    np.testing.assert_array_equal(gs.load("hf://user/new").predict(SMILES), gs.load(run_directory).predict(SMILES))
    card, scores = hub.ModelCard(files["README.md"].decode()), gs.load(run_directory).metrics["test"]
    assert (card.data.license, card.data.library_name) == ("mit", "graphslice")
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found["mae"] == scores["mae"] and card.data.eval_results[0].dataset_name == "demo60.csv"
    assert f"| gap_ev | {scores['molecules']} | {scores['mae']:.4g} |" in card.text
    assert "47 train, 7 valid, 6 test" in card.text and 'gs.load("hf://user/new")' in card.text


def test_an_ensemble_replaces_all_files_of_a_larger_one(server, monkeypatch, cli, tmp_path):
    from graphslice.runs.checkpoint import Checkpoint
    from graphslice.tasks import regression_tasks

    config = gs.RunConfig(model=gs.ModelConfig(**TINY))
    config.data.dataset = "/home/somebody/secret/table.csv"
    monkeypatch.setenv("HF_TOKEN", "secret")
    for size in (3, 2):
        weights = [gs.GraphTransformer(config.model).state_dict() for _ in range(size)]
        model = gs.Model([Checkpoint(config, regression_tasks(["y"]), one) for one in weights], "cpu")
        model.save(tmp_path / f"run-{size}")
        code, out, err = cli("push", tmp_path / f"run-{size}", "hf://user/several", "--public")
        assert code == 0, err
    files = list(server.repositories["user/several"].values())[-1]
    assert {name.split("/")[0] for name in files if "member" in name} == {"member-1", "member-2"}
    assert not any(b"somebody" in contents for contents in files.values()) and b"table.csv" in files["config.yaml"]
    np.testing.assert_array_equal(gs.load(out.strip()).predict(SMILES), model.predict(SMILES))
    card = hub.ModelCard(files["README.md"].decode())
    assert card.data.license == "unknown" and "2 networks" in card.text and "user/several" not in server.private


def test_push_needs_an_account_and_a_name(server, run_directory, cli):
    code, _, err = cli("push", run_directory, "user/new")
    assert code == 2 and "no access to hf://user/new" in err and "user/new" not in server.repositories
    code, _, err = cli("push", run_directory, "user/new@main")
    assert code == 2 and "no access to hf://user/new@main" in err
