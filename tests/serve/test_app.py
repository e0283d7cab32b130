"""The web application, without a network: predictions, limits and bad requests."""

import asyncio
import io
import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urljoin

import numpy as np
import openpyxl
import pytest
from rdkit import Chem

import graphslice as gs
from graphslice.data.featurize import featurizer_pool
from graphslice.errors import InputError
from graphslice.inference.predictions import output_columns

pytest.importorskip("fastapi_offline")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from graphslice.serve import app as app_module
from graphslice.serve.app import ServedModel, Service, create_app, draw_molecules, read_file

SMILES = ["CCO", "c1ccccc1O", "oops", "CC(=O)Oc1ccccc1C(=O)O", "", "CCN", "C1CC1", "CCCl", "N#CC"]


def make_client(*models: ServedModel, max_molecules: int = 1_000, seconds: float = 60) -> TestClient:
    service = Service(None, max_molecules, seconds)
    service.serve(models)
    return TestClient(create_app(service, ["localhost"]), "http://localhost:8000", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def model(run_directory):
    return gs.load(run_directory, "cpu")


@pytest.fixture(scope="module")
def served(model):
    return ServedModel("tiny", model)


@pytest.fixture(scope="module")
def client(served):
    return make_client(served)


@pytest.fixture(scope="module")
def with_columns(demo_rows, tiny_config, tmp_path_factory):
    """A model that reads a column ``dose``, with a name of a target that is HTML."""
    from graphslice.training import train

    folder = tmp_path_factory.mktemp("served")
    table = demo_rows.rename(columns={"gap_ev": "<b>gap</b>"}).assign(dose=np.arange(len(demo_rows)) % 5)
    table.to_csv(folder / "table.csv", index=False)
    train(tiny_config(folder / "table.csv", data={"targets": "<b>gap</b>", "features": "dose"}), folder / "run")
    return folder / "run"


def predict(client, smiles=SMILES, **options):
    response = client.post("/predict", json={"smiles": smiles, **options})
    assert response.status_code == 200, response.text
    return response.json()["rows"]


def test_rows_are_the_predictions_of_the_model(client, model):
    rows = predict(client)
    expected = model.predict(SMILES, details=True)
    assert [row["smiles"] for row in rows] == SMILES
    assert [row["error"] for row in rows] == expected.errors
    values = np.array([row["gap_ev_pred"] for row in rows], np.float32)  # None is nan
    np.testing.assert_array_equal(values, expected.values[:, 0])


def test_columns_are_those_of_predict_and_infinite_bounds_are_null(client, model):
    rows = predict(client, interval=90, nearest=True)
    assert list(rows[0]) == ["smiles", *output_columns(model.tasks, interval=90.0, nearest=True)]
    assert (rows[0]["gap_ev_low"], rows[0]["gap_ev_high"]) == (0, None)  # 7 calibration molecules are too few for 90%
    assert rows[0]["error"] is None
    expected = model.predict(SMILES, interval=60, nearest=True)
    rows = predict(client, interval=60, nearest=True)
    lows = np.array([row["gap_ev_low"] for row in rows], np.float32)
    np.testing.assert_array_equal(lows, expected.interval.low[:, 0])
    assert [row["nearest"] for row in rows] == expected.neighbours.nearest
    valid = [row for row, reason in enumerate(expected.errors) if reason is None]
    assert [rows[row]["in_domain"] for row in valid] == expected.neighbours.in_domain[valid].tolist()


def test_concurrent_requests_have_the_rows_of_single_ones(client, demo_smiles):
    requests = [{"smiles": demo_smiles[i : i + 1 + i % 7], "interval": 60 if i % 2 else None} for i in range(24)]
    alone = [client.post("/predict", json=request).text for request in requests]
    with ThreadPoolExecutor(16) as threads:
        explained = threads.submit(lambda: client.post("/explain", json={"smiles": "CCOCCN"}).status_code)
        together = list(threads.map(lambda request: client.post("/predict", json=request).text, requests * 2))
    assert together == alone * 2 and explained.result() == 200


def test_contributions_add_up_and_leave_predictions_as_they_are(client):
    before = predict(client)
    content = client.post("/explain", json={"smiles": "CC(=O)O"}).json()
    assert len(content["contributions"]) == 4 and content["quantity"] == "gap_ev"
    total = sum(content["contributions"]) + content["baseline"]
    assert (
        total == pytest.approx(content["prediction"]) == pytest.approx(predict(client, ["CC(=O)O"])[0]["gap_ev_pred"])
    )
    assert content["svg"].startswith("<svg") and predict(client) == before


def test_feature_columns(with_columns):
    client = make_client(ServedModel("run", gs.load(with_columns, "cpu")))
    (described,) = client.get("/models").json()["models"]
    assert described["columns"] == ["dose"] and described["targets"] == {"<b>gap</b>": "regression"}
    rows = predict(client, ["CCO", "CCO", "CCN"], columns={"dose": [1, 4, None]})
    expected = gs.load(with_columns, "cpu").predict(["CCO", "CCO", "CCN"], columns={"dose": [1, 4, np.nan]})
    np.testing.assert_array_equal(np.array([row["<b>gap</b>_pred"] for row in rows], np.float32), expected[:, 0])
    missing = client.post("/predict", json={"smiles": ["CCO"]})
    assert missing.status_code == 422 and "needs the feature column" in missing.json()["error"]
    assert client.post("/explain", json={"smiles": "CCO", "columns": {"dose": 2}}).status_code == 200


def test_a_model_is_chosen_by_its_name_and_paths_are_not_shown(served, model):
    client = make_client(served, ServedModel("other", model))
    assert client.post("/predict", json={"smiles": ["C"], "model": "other"}).json()["model"] == "other"
    assert client.post("/predict", json={"smiles": ["C"]}).json()["model"] == "tiny"
    response = client.post("/predict", json={"smiles": ["C"], "model": "othr"})
    assert response.status_code == 404 and "did you mean 'other'?" in response.json()["error"]
    described = client.get("/models")
    assert [one["name"] for one in described.json()["models"]] == ["tiny", "other"]
    assert str(model.folder) not in described.text and client.get("/health").json()["status"] == "ok"


def test_what_is_no_text_is_an_error_of_its_row(client, model):
    values = ["CCO", None, 5, ["C"], {"a": 1}, True, "CCN"]
    rows = predict(client, values)
    errors = [row["error"] for row in rows]
    assert errors == model.predict(values, details=True).errors
    assert [row for row, error in enumerate(errors) if error is None] == [0, 6] and errors[1] == "empty SMILES"
    assert errors[2] == "5 (int) is not a SMILES"
    svg = client.post("/draw", json={"smiles": values}).json()["svg"]
    assert [one is None for one in svg] == [error is not None for error in errors]


def test_half_a_character_is_an_error_of_its_row(client):
    """JSON can have one half of a surrogate pair, which UTF-8 cannot."""
    body, headers = rb'{"smiles": ["C\ud83d"]}', {"content-type": "application/json"}
    (row,) = client.post("/predict", content=body, headers=headers).json()["rows"]
    assert row["smiles"] == "C?" and row["error"]


def test_the_run_directory_may_disappear(run_copy):
    served = ServedModel("gone", gs.load(run_copy, "cpu"))
    expected = served.model.predict(SMILES, interval=60, nearest=True)
    shutil.rmtree(run_copy)
    client = make_client(served)
    rows = predict(client, interval=60, nearest=True)
    assert [row["nearest"] for row in rows] == expected.neighbours.nearest
    assert predict(client, ["C" * 300])[0]["error"] is None  # too large for the compiled program: torch predicts it
    assert client.post("/explain", json={"smiles": "CCO"}).status_code == 200


BAD = {
    "not-json": (b"{", 400, "JSON"),
    "not-utf-8": (b'{"smiles": ["\xff"]}', 400, "UTF-8"),
    "deep": (b"[" * 100_000, 400, "JSON"),
    "digits": (b'{"smiles": ["C"], "interval": ' + b"9" * 5_000 + b"}", 400, "JSON"),
    "many-numbers": (b'{"smiles": [' + b"1," * 500_000 + b"1]}", 413, "500,001 molecules"),
    "unknown-key": (b'{"smiles": ["C"], "intervals": 90}', 422, "intervals: Extra inputs are not permitted"),
    "nan-interval": (b'{"smiles": ["C"], "interval": NaN}', 422, "coverage"),
    "path": (b'{"smiles": ["C"], "model": "../../etc/passwd"}', 404, "no model"),
    "too-many": (json.dumps({"smiles": ["C"] * 10_000}).encode(), 413, "1,000 at a time"),
    "too-large": (b'{"smiles": ["' + b"C" * 10_000_000 + b'"]}', 413, "bytes"),
}


@pytest.mark.parametrize(("body", "status", "words"), BAD.values(), ids=BAD)
def test_bad_requests_have_a_status_and_a_sentence_and_the_server_lives_on(client, body, status, words):
    response = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert response.status_code == status and words in response.json()["error"]
    assert predict(client, ["CCO"])[0]["error"] is None


def test_a_molecule_of_a_million_atoms_is_an_error_of_its_row(client):
    rows = predict(client, ["C" * 1_000_000, "CCO"])
    assert "1000000 atoms, more than the limit" in rows[0]["error"] and rows[1]["error"] is None
    assert client.post("/draw", json={"smiles": ["C" * 1_000_000]}).json() == {"svg": [None]}
    assert client.post("/explain", json={"smiles": "C" * 1_000_000}).status_code == 422
    assert "120" in client.post("/explain", json={"smiles": "C" * 121}).json()["error"]


def test_a_request_that_takes_too_long_is_503_while_the_server_stays_responsive(served):
    release = threading.Event()
    slow = SimpleNamespace(name="slow", model=served.model, predict=lambda *_: release.wait(30) and [])
    with make_client(slow, served, seconds=0.3) as client, ThreadPoolExecutor(1) as threads:
        late = threads.submit(client.post, "/predict", json={"smiles": ["C"], "model": "slow"})
        time.sleep(0.1)
        assert client.get("/health").status_code == 200 and not late.done()
        assert late.result().status_code == 503 and "in time" in late.result().json()["error"]
        release.set()
        assert predict(client, ["CCO"], model="tiny")[0]["error"] is None


def test_of_many_large_requests_the_first_are_completed(served, monkeypatch):
    """All of them in turn would reach the time limit together, and none would be completed."""
    monkeypatch.setattr(app_module, "_CHUNK", 1)
    service, order = Service(None, 9, 60), []

    def predict(smiles: list[str], *_: object) -> list:
        order.extend(smiles)
        return []

    service.serve([SimpleNamespace(name="m", model=served.model, predict=predict)])
    request = SimpleNamespace(is_disconnected=lambda: asyncio.sleep(0), state=SimpleNamespace())
    bodies = [app_module.PredictRequest(smiles=[f"{number}"] * 3) for number in range(6)]

    async def send_all() -> None:
        await asyncio.gather(*(service.predict(body, request) for body in bodies))

    asyncio.run(send_all())
    assert sorted(order[:6]) == [*"000111"] and sorted(order) == [*"000111222333444555"]


def test_a_slow_molecule_costs_its_row_while_others_are_predicted(model, monkeypatch):
    monkeypatch.setattr("graphslice.chem.workers.ROW_SECONDS", 3)
    slow = "O%10" + "C1CCC(CC1)O" * 26 + "%10"
    with featurizer_pool(workers=2) as pool, ThreadPoolExecutor(1) as threads:
        client = make_client(ServedModel("tiny", model, pool))
        late = threads.submit(predict, client, ["CCO", slow])
        time.sleep(0.3)
        assert predict(client, ["CCN"])[0]["error"] is None and not late.done()
        assert [row["error"] for row in late.result()] == [None, "RDKit took longer than 3 s"]


def test_a_request_that_is_over_gives_up_its_slow_molecules(model, monkeypatch):
    monkeypatch.setattr("graphslice.chem.workers.ROW_SECONDS", 0.5)
    slow, over = "O%10" + "C1CCC(CC1)O" * 26 + "%10", threading.Event()
    over.set()
    with featurizer_pool(workers=2) as pool, pytest.raises(TimeoutError):
        ServedModel("tiny", model, pool).predict([slow] * 128, {}, None, False, over)


def test_a_request_is_503_if_the_server_stops_before_it_ends(served):
    started, release, service, sent = threading.Event(), threading.Event(), Service(None, 9, 60), []

    def predict(*_: object) -> list:
        started.set()
        release.wait(30)
        return []

    service.serve([SimpleNamespace(name="slow", model=served.model, predict=predict)])
    messages = [{"type": "http.request", "body": b'{"smiles": ["C"]}'}]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")]}

    async def receive() -> dict:
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: dict) -> None:
        sent.append(message)

    async def stop() -> None:
        task = asyncio.create_task(create_app(service)(scope, receive, send))
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.sleep(0)  # asyncio.run cancels it again

    asyncio.run(stop())
    release.set()
    assert sent[0]["status"] == 503 and b"the server is stopping" in sent[1]["body"]


def test_responses_have_the_properties_of_the_schema(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for path, body, name in (
        ("/explain", {"smiles": "CCO"}, "ExplainResponse"),
        ("/draw", {"smiles": ["CCO", "oops"]}, "DrawResponse"),
        ("/predict", {"smiles": ["CCO"]}, "PredictResponse"),
    ):
        assert list(client.post(path, json=body).json()) == list(schemas[name]["properties"])


def test_an_unexpected_error_is_500_and_the_server_lives_on(served):
    broken = SimpleNamespace(name="broken", model=served.model, predict=lambda *_: 1 / 0)
    client = make_client(broken, served)
    response = client.post("/predict", json={"smiles": ["C"]})
    assert response.status_code == 500 and response.json() == {"error": "internal error: see the log of the server"}
    assert predict(client, ["CCO"], model="tiny")[0]["error"] is None


def test_too_many_requests_at_a_time_are_503(client, monkeypatch):
    monkeypatch.setattr(app_module, "_MAX_REQUESTS", 0)
    assert client.post("/predict", json={"smiles": ["C"]}).status_code == 503
    assert client.get("/health").status_code == 200


def test_a_body_that_does_not_arrive_is_408(client, monkeypatch):
    monkeypatch.setattr(app_module, "_BODY_SECONDS", 0.01)
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    asyncio.run(client.app(scope, lambda: asyncio.sleep(60), send))
    assert sent[0]["status"] == 408 and b"did not arrive within" in sent[1]["body"]


@pytest.mark.parametrize(
    ("host", "status"), {"localhost": 200, "localhost:9": 200, "evil.example": 421, "": 421}.items()
)
def test_other_host_names_are_rejected(client, host, status):
    assert client.get("/health", headers={"host": host}).status_code == status


def test_page_and_documentation_load_nothing_from_elsewhere(client):
    page = client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"] and "unsafe-inline'; img" in str(page.headers)
    modules = ("common", "cells", "compare", "input", "page", "table")
    for path in ("/", "/page.css", *(f"/{name}.js" for name in modules), "/docs", "/redoc"):
        text = client.get(path).text
        assert client.get(path).status_code == 200
        assert not re.search(r"(?:src|href|url|import|from)\s*[=(]*\s*[\"'](?:https?:)?//", text), path
    assert client.get("/openchemlib.js").headers["content-type"].startswith("text/javascript")
    paths = client.get("/openapi.json").json()["paths"]
    assert {*paths} == {"/predict", "/explain", "/read", "/draw", "/health", "/ready", "/models"}
    assert client.get("/page/../app.py").status_code == client.get("/../cli/serve.py").status_code == 404
    assert client.get("/predict").json() == {"error": "GET /predict: method not allowed; see /docs"}


def test_the_page_works_below_a_path_that_a_proxy_removes(client):
    page = "http://localhost:8000/tools/graphslice/"
    urls, names = re.compile(r"""(?:src=|href=|from |import\(|api\()["'`]([^"'`?]+)"""), ["./"]
    for name in names:
        assert urljoin(page, name).startswith(page)
        response = client.get(urljoin(page, name).removeprefix(page))
        assert response.status_code in (200, 405), name  # 405: takes POST
        if name.endswith((".js", "/")) and "openchemlib" not in name:
            names += [url for url in urls.findall(response.text) if not url.startswith("data:") and url not in names]
    assert {"page.css", "./common.js", "./openchemlib.js", "docs", "predict", "explain", "draw", "read"} < {*names}


def workbook(*rows: list) -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(file)
    return file.getvalue()


BYTES = {"content-type": "application/octet-stream"}


def test_files_become_csv(client):
    book = workbook(["name", "SMILES", "dose"], ['a, "b"', "CCO", 1.5], [None, "CCN", None])
    content = client.post("/read?name=My%20book.XLSX", content=book, headers=BYTES).json()
    assert content == {"csv": 'name,SMILES,dose\n"a, ""b""",CCO,1.5\n,CCN,\n', "notes": []}
    record = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")) + "> <logp>\n-0.3\n\n$$$$\n"
    content = client.post("/read?name=a.sdf", content=f"first{record}bad\n\n\n$$$$\n", headers=BYTES).json()
    assert content["csv"] == "smiles,name,logp\nCCO,first,-0.3\n,bad,\n"
    assert content["notes"][0].startswith("1 record without a structure; the first: record 2 of file.sdf")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.xlsx", b"no archive", "cannot read file.xlsx"),
        ("a.sdf", b"", "empty"),
        ("../etc/passwd", b"", "neither .xlsx nor .sdf"),
        ("a.xlsx", b"PK\5\6" + b"\xff" * 18, "cannot read file.xlsx"),
    ],
)
def test_files_that_cannot_be_read_are_one_sentence(client, name, content, words):
    response = client.post("/read", params={"name": name}, content=content, headers=BYTES)
    assert response.status_code == 422 and words in response.json()["error"] and "/tmp" not in response.text


def test_files_are_not_read_from_a_form_of_another_page(client):
    response = client.post("/read?name=a.sdf", content=b"$$$$", headers={"content-type": "text/plain"})
    assert response.status_code == 422 and "content-type: application/octet-stream" in response.json()["error"]


def test_a_file_that_unpacks_to_too_much_or_takes_too_long_is_rejected(monkeypatch):
    book = workbook(["SMILES"], *(["C" * 1000] for _ in range(1000)))
    monkeypatch.setattr(app_module, "_UNPACKED_BYTES", 2_000)
    for has_parts in (True, False):  # or cells alone, as if they shared a text
        monkeypatch.setattr(app_module, "is_zipfile", lambda path, has_parts=has_parts: has_parts)
        with pytest.raises(InputError, match="2,000 bytes when it is unpacked"):
            read_file("a.xlsx", book)
    monkeypatch.setattr("graphslice.chem.workers.ROW_SECONDS", 0.5)
    monkeypatch.setattr("graphslice.serve.app.open_table", lambda path: time.sleep(60))
    with featurizer_pool(workers=2) as pool, pytest.raises(InputError, match="takes too long"):
        read_file("a.sdf", b"x", pool)


def test_models_are_described_with_groups_directions_and_drugs(served):
    adme = ServedModel("adme", gs.load("adme", "cpu"))
    own, packaged = make_client(served, adme).get("/models").json()["models"]
    assert (own["groups"], own["better"], own["reference"]) == ({"": ["gap_ev"]}, {}, {})
    assert list(packaged["groups"]) == ["absorption", "distribution", "metabolism", "excretion", "toxicity"]
    assert packaged["better"]["herg"] == "lower" and "logd" not in packaged["better"]
    assert len(packaged["reference"]["logd"]) == 101


def test_drawings_have_no_html_of_their_input(client):
    labelled = 'CC |$<script>alert(1)</script>;"onload="x$|'
    svg = draw_molecules(["CCO", "oops", labelled, "C" * 200])
    assert svg[0].startswith("<svg") and svg[1] is None and svg[3] is None
    assert "<script" not in svg[2] and '"onload' not in svg[2]
    assert client.post("/draw", json={"smiles": ["CCO", "oops", labelled, "C" * 200]}).json()["svg"] == svg


def test_a_crash_while_drawing_costs_its_row_only(monkeypatch):
    monkeypatch.setattr("graphslice.serve.app.draw_molecule", lambda text: os._exit(1) if text == "X" else text)
    with featurizer_pool(workers=2) as pool:  # forked: the processes have the function above
        assert draw_molecules(["C", "X", "N"], pool) == ["C", None, "N"]


def test_a_server_without_its_models_is_alive_but_not_ready(served):
    service = Service(None, 9, 60)
    client = TestClient(create_app(service), raise_server_exceptions=False)
    assert client.get("/health").status_code == 200 and "models_loaded 0.0" in client.get("/metrics").text
    responses = [client.get(path) for path in ("/ready", "/models")]
    responses += [client.post("/predict", json={"smiles": ["C"]}), client.post("/explain", json={"smiles": "C"})]
    assert [(one.status_code, one.headers["retry-after"]) for one in responses] == [(503, "5")] * 4
    assert all("are being loaded" in one.json()["error"] for one in responses)
    service.serve([served])
    assert client.head("/ready").status_code == client.head("/health").status_code == 200  # as load balancers ask
    assert client.get("/ready").json() == {"status": "ok"} and "models_loaded 1.0" in client.get("/metrics").text


def samples(client) -> dict[tuple[str, str, str], float]:
    """The metrics by name, path and status, as Prometheus reads them."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (one.name, one.labels.get("path", ""), one.labels.get("status", one.labels.get("le", ""))): one.value
        for family in families
        for one in family.samples
    }


def test_metrics_count_requests_molecules_and_seconds(served):
    broken = SimpleNamespace(name="broken", model=served.model, predict=lambda *_: 1 / 0)
    client = make_client(served, broken)
    for body in ({"smiles": SMILES}, {"smiles": ["CCO"]}, {"smiles": []}, {"smiles": ["C"] * 7, "model": "broken"}):
        client.post("/predict", json=body)
    for path in ("/secret/C1CC1", "/nothing"):
        assert client.get(path).status_code == 404
    counts = samples(client)
    requests = {key[1:]: value for key, value in counts.items() if key[0] == "graphslice_requests_total"}
    assert requests == {("/predict", "200"): 2, ("/predict", "422"): 1, ("/predict", "500"): 1, ("other", "404"): 2}
    assert counts["graphslice_molecules_total", "", ""] == len(SMILES) + 1
    buckets = [counts["graphslice_request_seconds_bucket", "/predict", le] for le in ("0.01", "1.0", "60.0", "+Inf")]
    assert buckets == sorted(buckets) and buckets[-1] == counts["graphslice_request_seconds_count", "/predict", ""] == 4
    assert counts["graphslice_models_loaded", "", ""] == 2 and counts["graphslice_requests_waiting", "", ""] == 0


def test_a_request_that_waits_is_a_metric(served):
    release = threading.Event()
    slow = SimpleNamespace(name="slow", model=served.model, predict=lambda *_: release.wait(30) and [])
    with make_client(slow) as client, ThreadPoolExecutor(1) as threads:
        late = threads.submit(client.post, "/predict", json={"smiles": ["C"]})
        while not samples(client)["graphslice_requests_waiting", "", ""]:
            assert not late.done()
        release.set()
        assert late.result().status_code == 200 and not samples(client)["graphslice_requests_waiting", "", ""]


def test_a_request_is_one_line_of_log_without_what_the_client_wrote(client, capfd):
    predict(client, SMILES)
    client.get("/C1CC1%0A2026-01-01 POST /predict 200?smiles=C1CC1")
    client.request("C1CC1", "/models")
    client.post("/predict", json={"smiles": ["C"], "model": "C1CC1"})
    lines = capfd.readouterr().err.splitlines()
    time_and_rest = [re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00 (.*) \d+ ms", line)[1] for line in lines]
    assert time_and_rest == [
        f"POST /predict 200 {len(SMILES)} molecules",
        "GET other 404 0 molecules",
        "other /models 405 0 molecules",
        "POST /predict 404 0 molecules",
    ]
