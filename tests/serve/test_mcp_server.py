"""``graphslice mcp`` in a child process, called by the client of the protocol's own SDK."""

import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anyio
import numpy as np
import pandas as pd
import pytest
from anyio.from_thread import start_blocking_portal
from json_documents import validate
from mcp import Client, StdioServerParameters, stdio_client

import graphslice as gs
from graphslice.errors import InputError
from graphslice.serve.mcp import TOOLS, Folder, Tools


@pytest.fixture(scope="module")
def folder(tmp_path_factory, demo_csv):
    """The folder of the server, next to a file that is not in it."""
    folder = tmp_path_factory.mktemp("served") / "folder"
    folder.mkdir()
    shutil.copy(demo_csv, folder / "demo.csv")
    shutil.copy(demo_csv, folder.parent / "outside.csv")
    (folder / "link.csv").symlink_to("../outside.csv")
    return folder


@pytest.fixture(scope="module")
def command(folder, run_directory):
    return [sys.executable, "-m", "graphslice", "mcp", "--folder", str(folder), "--model", str(run_directory)]


@pytest.fixture(scope="module")
def server(command, child_environment):
    """``server.call(tool, **arguments)`` returns the document, ``server.fail(...)`` the message of an error."""
    transport = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=child_environment))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(transport)) as client:

        def call(name, **arguments):
            result = portal.call(client.call_tool, name, arguments)
            assert not result.is_error, result.content[0].text
            assert json.loads(result.content[0].text) == result.structured_content
            validate(result.structured_content, name)
            return result.structured_content

        def fail(name, **arguments):
            result = portal.call(client.call_tool, name, arguments)
            assert result.is_error and result.structured_content is None
            return result.content[0].text

        yield SimpleNamespace(call=call, fail=fail, list=lambda: portal.call(client.list_tools).tools)


def test_tools_are_listed_with_their_schemas(server):
    tools = {tool.name: tool for tool in server.list()}
    assert [*tools] == [*TOOLS]
    assert tools["predict"].input_schema["required"] == ["smiles"] and tools["train"].output_schema["properties"]
    assert [name for name, tool in tools.items() if not tool.annotations.read_only_hint] == ["predict_file", "train"]


def test_predict_is_the_document_of_the_command(server, cli, run_directory):
    document = server.call("predict", smiles=["CCO", "C[N"], interval=50, nearest=True)
    _, out, _ = cli("predict", run_directory, "CCO", "C[N", "--interval", 50, "--nearest", "--json")
    expected = json.loads(out)
    found = pd.DataFrame(document["rows"])
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected.pop("rows")), rtol=1e-5)
    assert {name: document[name] for name in expected} == expected


def test_describe_model(server, run_directory):
    document = server.call("describe_model")
    assert document["targets"] == {"gap_ev": "regression"} and document["calibrated"] is True
    assert document["metrics"] == json.loads((run_directory / "metrics.json").read_text())


def test_explain(server, run_directory):
    document = server.call("explain", smiles=["OCC", "C[N"])
    (molecule,) = document["molecules"]
    expected = gs.load(run_directory, "cpu").attribute("OCC")
    np.testing.assert_allclose(molecule["targets"]["gap_ev"]["contributions"], expected, atol=1e-4)
    assert molecule["elements"] == ["O", "C", "C"] and "not a valid SMILES" in document["left_out"][0]["error"]


def test_predict_file(server, folder):
    (folder / "json.py").write_text("raise SystemExit('a module of the folder was imported')")
    document = server.call("predict_file", table="demo.csv", out="predicted.csv")
    assert document["total"] == 60 and len(pd.read_csv(folder / "predicted.csv")) == 60


def test_a_packaged_model_is_not_replaced_by_a_folder_of_its_name(server, folder):
    (folder / "gap").mkdir()
    server.call("predict_file", table="demo.csv", out="of_gap.csv", model="gap")
    assert "gap_pred" in pd.read_csv(folder / "of_gap.csv")
    (row,) = server.call("predict", smiles=["CCO"], model="gap")["rows"]
    assert row["gap_pred"] == pytest.approx(float(gs.load("gap", "cpu").predict("CCO")[0, 0]), abs=1e-4)


def test_evaluate(server, run_directory):
    document = server.call("evaluate", dataset="demo.csv", split="test")
    metrics = json.loads((run_directory / "metrics.json").read_text())
    assert document["mae"] == pytest.approx(metrics["test"]["mae"], rel=1e-4)


@pytest.mark.slow
def test_train_writes_a_run_that_other_tools_use(server, folder):
    arguments = {"dataset": "demo.csv", "targets": "gap_ev", "smiles_column": "smiles", "epochs": 1, "minutes": 1}
    document = server.call("train", out="runs/new", **arguments)
    assert (
        document["folder"] == str(folder / "runs" / "new") and (folder / "runs" / "new" / "model.safetensors").is_file()
    )
    for name in ("runs/new", document["folder"]):
        assert server.call("describe_model", model=name)["metrics"] == document["metrics"]
    assert server.call("predict", smiles=["CCO"], model="runs/new")["failed"] == 0


OUTSIDE = ["../outside.csv", "link.csv", "runs/../../outside.csv", "/etc/passwd"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_are_rejected(server, folder, path):
    before = sorted(folder.parent.iterdir())
    for tool, arguments in {
        "train": {"dataset": path, "out": "x"},
        "evaluate": {"dataset": path},
        "predict_file": {"table": path, "out": "x.csv"},
        "describe_model": {"model": path},
    }.items():
        assert "leads out" in server.fail(tool, **arguments)
    assert "leads out" in server.fail("train", dataset="demo.csv", out=path)
    assert "leads out" in server.fail("predict_file", table="demo.csv", out=path)
    assert sorted(folder.parent.iterdir()) == before and not (folder / "x").exists()


def test_run_that_names_files_outside_is_not_evaluated(server, folder, run_directory, make_predictor):
    model = make_predictor(targets=("gap_ev",))
    model.config.data.test_file = str(folder.parent / "outside.csv")
    gs.Model(model.checkpoints, "cpu").save(folder / "crafted")
    assert server.call("predict", smiles=["CCO"], model="crafted")["failed"] == 0
    assert "outside.csv' leads out" in server.fail("evaluate", dataset="demo.csv", model="crafted")


BAD = {
    "unknown model or run directory 'absent'": ("predict", {"smiles": ["CCO"], "model": "absent"}),
    "cannot inspect 'C[N': not a valid SMILES": ("explain", {"smiles": ["C[N"]}),
    "at most 1000 items": ("predict", {"smiles": ["CCO"] * 10_000}),
    "at most 20 items": ("explain", {"smiles": ["CCO"] * 10_000}),
    "at least 1 item": ("predict", {"smiles": []}),
    "predict: smile: Unexpected": ("predict", {"smiles": ["C"], "smile": "C"}),
    "evaluate: data: Unexpected": ("evaluate", {"dataset": "demo.csv", "data": "demo.csv"}),
    "predict: smiles: Input should be a valid list": ("predict", {"smiles": "CCO"}),
    "coverage": ("predict", {"smiles": ["C"], "interval": 500}),
    "unknown tool 'predic'": ("predic", {}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_an_error_and_the_server_lives_on(message, server):
    name, arguments = BAD[message]
    found = server.fail(name, **arguments)
    assert message in found and len(found) < 1000
    assert server.call("predict", smiles=["CCO"])["failed"] == 0


def test_arguments_are_never_options(folder, monkeypatch):
    commands = []

    async def run_process(command, **options):
        commands.append(command)
        return SimpleNamespace(stdout=b'{"error": "/a/--out"}', returncode=2)

    monkeypatch.setattr(anyio, "run_process", run_process)
    tools = Tools(Folder(folder), ["gap"])
    arguments = {"dataset": "demo.csv", "out": "--overwrite", "targets": "--resume", "split": "-o", "epochs": 2}
    with pytest.raises(InputError, match=r"^/a/--out$"):
        anyio.run(partial(tools.train, **arguments))
    paths = [f"--dataset={folder}/demo.csv", f"--out={folder}/--overwrite"]
    assert commands[0][1:4] == ["-P", "-m", "graphslice"]
    assert commands[0][4:] == ["train", *paths, "--targets=--resume", "--split=-o", "--epochs=2", "--json"]


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def message(**content) -> str:
    """Return a line that a client sends, in the form of the protocol."""
    return json.dumps({"jsonrpc": "2.0", **content}) + "\n"


def called(number: int, name: str, **arguments) -> str:
    return message(id=number, method="tools/call", params={"name": name, "arguments": arguments})


def test_nothing_but_the_protocol_on_standard_output_and_training_ends_with_the_server(
    command, child_environment, folder
):
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=child_environment) as process:
        process.stdin.write("no JSON\n" + message(id=0, method="initialize", params=HELLO))
        process.stdin.write(message(method="notifications/initialized") + called(1, "predict", smiles=["CCO"]))
        process.stdin.write(called(2, "predict_file", table="demo.csv", out="again.csv"))
        process.stdin.flush()
        replies = {}
        while {0, 1, 2} - replies.keys():
            line = json.loads(process.stdout.readline())
            assert line["jsonrpc"] == "2.0"
            replies[line.get("id")] = line
        assert replies[0]["result"]["serverInfo"]["name"] == "graphslice" and str(command[-1]) in str(replies[0])
        assert "error" not in replies[1] and replies[2]["result"]["structuredContent"]["total"] == 60
        child = []
        if sys.platform == "linux":  # the others have no /proc
            process.stdin.write(called(3, "train", dataset="demo.csv", out="cut", targets="gap_ev"))
            process.stdin.flush()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            deadline = time.monotonic() + 100
            while not (child := children.read_text().split()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        process.stdin.close()
        rest = [json.loads(line)["id"] for line in process.stdout]
        assert rest in ([], [3] * bool(child)) and process.wait(60) == 0
    for number in child:
        status = Path(f"/proc/{number}/stat")
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


SLOW = ["O%10" + "C1CCC(CC1)O" * 26 + "%10"] * 30


def test_slow_molecules_neither_keep_other_calls_waiting_nor_the_server(command, child_environment):
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=child_environment) as process:
        process.stdin.write(message(id=0, method="initialize", params=HELLO))
        process.stdin.write(message(method="notifications/initialized") + called(1, "predict", smiles=SLOW))
        process.stdin.write(called(2, "predict", smiles=["CCO"]))
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["id"] for _ in range(2)] == [0, 2]
        process.stdin.close()
        assert process.wait(60) == 0


def test_sigterm_ends_it_while_it_predicts_and_writes(command, child_environment):
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=child_environment) as process:
        process.stdin.write(message(id=0, method="initialize", params=HELLO))
        process.stdin.write(message(method="notifications/initialized") + called(1, "predict", smiles=SLOW))
        process.stdin.write("".join(message(id=number, method="tools/list") for number in range(2, 200)))
        process.stdin.flush()
        process.stdout.readline()
        process.terminate()
        process.stdin.close()
        process.stdout.read()
        assert process.wait(60) == 143


def test_missing_folder_ends_with_one_sentence(cli, tmp_path):
    code, out, err = cli("mcp", "--folder", tmp_path / "absent")
    assert (code, out) == (2, "") and "absent is not a folder" in err
