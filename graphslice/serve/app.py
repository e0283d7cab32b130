"""The web application: endpoints of the JSON API, the files of the page, and limits of requests."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphslice._version import __version__
from graphslice.api.model import Model, explain_molecule
from graphslice.chem.workers import tasks
from graphslice.data.columns import TableColumns
from graphslice.data.featurize import Pool, parse
from graphslice.data.tables import EXCEL_SUFFIXES, SDF_SUFFIXES, open_table, plain_rows, write_table
from graphslice.errors import InputError, file_errors, nearest, pluralize, shown
from graphslice.inference.files import predict_chunks
from graphslice.inference.inputs import Columns, as_feature_columns, smiles_rows
from graphslice.report.drawing import draw_molecule
from graphslice.runs.run_files import without_nan
from graphslice.serve.documents import Text
from graphslice.serve.monitor import Metrics, Monitor
from graphslice.tasks import GROUPS

_Result = TypeVar("_Result")

# Molecules that are computed at a time: between two chunks other requests have their turn.
_CHUNK = 128
# Requests with a body in progress, waiting ones included; idle connections do not count.
_MAX_REQUESTS = 128
# Headers of 503.
_LATER = {"retry-after": "5"}
# Bytes of a request for each of its molecules; of a file, and of what a workbook holds when it is unpacked.
_MOLECULE_BYTES, _FILE_BYTES, _UNPACKED_BYTES = 2_048, 20_000_000, 200_000_000
_BYTES = "application/octet-stream"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_STRICT = ConfigDict(extra="forbid", strict=True)
_MODEL = Field(None, description="name of the model, as in /models (default: the first)")


class PredictRequest(BaseModel):
    """Molecules to predict."""

    model_config = _STRICT
    smiles: list[Text] = Field(
        min_length=1, description="SMILES; anything else has an error in its row", examples=[["CCO", "c1ccccc1O"]]
    )
    model: str | None = _MODEL
    interval: float | None = Field(
        None, description="coverage in percent, such as 90: adds prediction intervals, similarity and in_domain"
    )
    nearest: bool = Field(False, description="add the most similar training molecule")
    columns: Annotated[dict[str, Annotated[list[float | None], FailFast()]], FailFast()] = Field(
        {}, description="feature columns that the model reads: one number for each molecule"
    )


class ExplainRequest(BaseModel):
    """A molecule whose prediction is explained."""

    model_config = _STRICT
    smiles: str = Field(max_length=5_000, examples=["CCO"])
    model: str | None = _MODEL
    target: str | None = Field(None, description="name of a target, or a part of it (default: the first)")
    orders: int = Field(64, ge=2, le=256, description="sampled atom permutations; more reduces the standard error")
    columns: dict[str, float | None] = Field({}, description="feature columns that the model reads")


class DrawRequest(BaseModel):
    """Molecules to draw."""

    model_config = _STRICT
    smiles: list[Text] = Field(max_length=_CHUNK, examples=[["CCO"]])


class Problem(BaseModel):
    """Body of every status from 400 on."""

    error: str = Field(description="what is wrong, in a sentence")


class PredictResponse(BaseModel):
    """Predictions."""

    model: str
    rows: list[dict[str, Any]] = Field(
        description="for each molecule smiles, the columns of `graphslice predict`, and error: null, or why it has no "
        "prediction; bounds that are infinite are null"
    )


class ExplainResponse(BaseModel):
    """Contributions of the atoms of a molecule to a prediction."""

    quantity: str = Field(description="name of the target, and its scale")
    prediction: float
    baseline: float = Field(description="prediction for blank atoms")
    contributions: list[float] = Field(description="one for each atom, in the order of the SMILES")
    standard_errors: list[float | None] | None
    notes: list[str]
    warning: str | None
    svg: str


class ReadResponse(BaseModel):
    """Table of a file."""

    csv: str
    notes: list[str] = Field(description="remarks, such as records that cannot be read")


class DrawResponse(BaseModel):
    """Drawings."""

    svg: list[str | None] = Field(description="for each molecule an SVG element, or null")


_OF_ALL: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (421, 500, 503)}
_ERRORS = _OF_ALL | {status: {"model": Problem} for status in (400, 404, 408, 413, 422)}


class Service:
    """The endpoints. Each request has a thread, which waits for its turn to predict, and meanwhile for the processes of
    ``pool`` that parse and draw; explanations are computed by one thread. Molecules of several requests are never
    computed in one batch, whose size would move the last digit. The time limit, in ``seconds``, begins when the body
    has arrived."""

    def __init__(self, pool: Pool, max_molecules: int, seconds: float) -> None:
        self.models: dict[str, ServedModel] = {}
        self._pool, self.max_molecules, self._seconds = pool, max_molecules, seconds
        self._waiting = ThreadPoolExecutor(_MAX_REQUESTS, "graphslice-request")
        self._explaining = ThreadPoolExecutor(1, "graphslice-explain")
        # Requests of more than a chunk, one to parse and one to predict: more would reach the time limit together.
        self._large = asyncio.Semaphore(2)

    def serve(self, models: Sequence[ServedModel]) -> None:
        """Begin to serve models; before, endpoints that need one respond with 503."""
        self.models = {served.name: served for served in models}

    def health(self) -> dict[str, Any]:
        """Report that the server lives."""
        return {"status": "ok", "version": __version__, "models": len(self.models)}

    def ready(self) -> dict[str, str]:
        """Report that the models are loaded and warm: 503 before."""
        if not self.models:
            raise HTTPException(503, "the models are being loaded: try again later", headers=_LATER)
        return {"status": "ok"}

    def describe(self) -> dict[str, Any]:
        """Describe the models, and the largest number of molecules of a request."""
        self.ready()
        return {"models": [served.describe() for served in self.models.values()], "max_molecules": self.max_molecules}

    async def predict(self, body: PredictRequest, request: Request) -> Response:
        """Predict the targets of molecules. Invalid molecules have an error in their row."""
        served, count = self._find(body.model), len(body.smiles)
        if count > self.max_molecules:
            raise HTTPException(413, f"{count:,} molecules are too many: send {self.max_molecules:,} at a time")
        request.state.molecules = count
        served.model.check_calibrated(body.interval, body.nearest)
        columns = as_feature_columns(served.model.feature_columns, body.columns, count)
        rows: list[dict[str, Any]] = []
        over = threading.Event()
        try:
            async with self._time_limit(), self._large if count > _CHUNK else nullcontext():
                for start in range(0, count, _CHUNK):
                    if await request.is_disconnected():
                        break
                    part = slice(start, start + _CHUNK)
                    values = {name: numbers[part] for name, numbers in columns.items()}
                    arguments = body.smiles[part], values, body.interval, body.nearest, over
                    rows += await self._in(self._waiting, served.predict, *arguments)
                return await self._in(self._waiting, _json_response, {"model": served.name, "rows": rows})
        finally:
            over.set()

    async def explain(self, body: ExplainRequest) -> Response:
        """Compute the contributions of the atoms of a molecule to a target (Shapley values), with a picture."""
        served, columns = self._find(body.model), {name: [value] for name, value in body.columns.items()}
        async with self._time_limit():
            arguments = body.smiles, body.target, columns, body.orders
            return JSONResponse(await self._in(self._explaining, served.explain, *arguments))

    async def read(self, name: str, request: Request) -> Response:
        """Convert a file, the body of the request, to CSV: an Excel workbook or an SDF file, by the end of its name."""
        if request.headers.get("content-type") != _BYTES:  # which browsers do not let other pages send
            raise InputError(f"send the file with the header content-type: {_BYTES}")
        content = await request.body()
        async with self._time_limit():
            return JSONResponse(await self._in(self._waiting, read_file, name, content, self._pool))

    async def draw(self, body: DrawRequest) -> Response:
        """Draw molecules as SVG elements; null where a molecule is invalid or has more than 120 atoms."""
        async with self._time_limit():
            return JSONResponse({"svg": await self._in(self._waiting, draw_molecules, body.smiles, self._pool)})

    def close(self) -> None:
        """Stop the threads."""
        for executor in (self._waiting, self._explaining):
            executor.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except asyncio.CancelledError:  # the server stops, and waits no longer
            detail = "the server is stopping: try again later"
            raise HTTPException(503, detail, headers=_LATER) from None

    def _find(self, name: str | None) -> ServedModel:
        self.ready()
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise HTTPException(404, f"there is no model {name!r}{nearest(name, self.models)}: see /models")
        return self.models[name]

    async def _in(self, executor: ThreadPoolExecutor, function: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(executor, partial(function, *arguments))


def create_app(service: Service, hosts: Collection[str] | None = None) -> FastAPI:
    """Make the application of a service; ``hosts``: accepted names of this server, or None for all."""
    app = FastAPIOffline(
        title="GraphSlice",
        version=__version__,
        description="Molecular properties from SMILES. The page for the browser is at [/](/).",
    )
    for path, probe in (("/health", service.health), ("/ready", service.ready)):
        app.get(path, responses=_OF_ALL)(probe)
        app.head(path, include_in_schema=False)(probe)
    metrics = Metrics(lambda: len(service.models))
    app.get("/metrics", include_in_schema=False)(metrics.text)
    app.get("/models", responses=_OF_ALL)(service.describe)
    app.post("/predict", responses=_ERRORS, response_model=PredictResponse)(service.predict)
    app.post("/explain", responses=_ERRORS, response_model=ExplainResponse)(service.explain)
    app.post("/draw", responses=_ERRORS, response_model=DrawResponse)(service.draw)
    app.post("/read", responses=_ERRORS, response_model=ReadResponse)(service.read)
    for file in files("graphslice.serve").joinpath("page").iterdir():
        if media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]):
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.get(path, include_in_schema=False)(_page_file(file.read_bytes(), media_type))
    for kind in (InputError, RequestValidationError, TimeoutError, StarletteHTTPException, Exception):
        app.add_exception_handler(kind, _problem)
    max_bytes = max(service.max_molecules, _CHUNK) * _MOLECULE_BYTES
    app.add_middleware(Guard, max_bytes=max_bytes, hosts=hosts)
    app.add_middleware(Monitor, metrics=metrics, paths={getattr(route, "path", "") for route in app.routes})
    return app


def _page_file(content: bytes, media_type: str) -> Callable[[], Response]:
    """Return an endpoint for a file of the page."""
    if media_type == "text/css":  # the colours and tables of the HTML report
        content = files("graphslice.report").joinpath("templates", "style.css").read_bytes() + content
    return lambda: Response(content, media_type=media_type, headers={"cache-control": "no-cache"})


async def _problem(request: Request, error: Exception) -> Response:
    """Make of every error a status and a JSON object with one sentence."""
    status, sentence = 500, "internal error: see the log of the server"
    headers: Mapping[str, str] | None = None
    if isinstance(error, InputError):
        status, sentence = 422, str(error)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status = 400 if first["type"] == "json_invalid" else 422
        where = ".".join(map(str, first["loc"][1:])) or "body"
        sentence = f"{where}: {first['msg']}"
        if first["type"] == "model_attributes_type":  # no object, or bytes
            sentence = "send a JSON object, with the header content-type: application/json"
    elif isinstance(error, TimeoutError):
        status, sentence = 503, "the server did not finish in time: send fewer molecules, or try again later"
        headers = _LATER
    elif isinstance(error, StarletteHTTPException):
        status, sentence, headers = error.status_code, error.detail, error.headers
        if sentence == HTTPStatus(status).phrase:
            sentence = f"{request.method} {request.url.path}: {sentence.lower()}; see /docs"
    if status == 400:  # also too deeply nested, and numbers of thousands of digits
        sentence = "the body of the request cannot be read: it must be JSON in UTF-8"
    return JSONResponse({"error": sentence}, status, headers)


def _json_response(content: dict[str, Any]) -> Response:
    """Encode a response, which may be large, in the calling thread; in ASCII, as a SMILES may have half a character."""
    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


# Seconds in which a body must arrive.
_BODY_SECONDS = 30
#: Headers of the page: it runs no script but its own, and sends data to no other host.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Pages with scripts inside, which get no such headers.
_WITHOUT_POLICY = ("/docs", "/redoc")


class Guard:
    """ASGI middleware that limits host names, and number, size and time of bodies, and sets headers of security. A page
    from elsewhere whose name was made to resolve to this machine (DNS rebinding) has another name than ``hosts``, the
    accepted ones (None: all)."""

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,  # of the body of a request, unless it is a file
        hosts: Collection[str] | None,
    ) -> None:
        self._app, self._max_bytes, self._hosts, self._requests = app, max_bytes, hosts, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, complete, deadline = 0, False, asyncio.get_running_loop().time() + _BODY_SECONDS
        max_bytes = _FILE_BYTES if scope["path"] == "/read" else self._max_bytes

        async def receive_limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
                    size += len(message.get("body", b""))
                    while size > max_bytes and message.get("more_body"):
                        message = await receive()  # many clients read no response before they have sent all
            except TimeoutError:
                raise HTTPException(408, f"the request did not arrive within {_BODY_SECONDS} s") from None
            if size > max_bytes:
                sentence = f"the request has more than {max_bytes:,} bytes: send fewer molecules at a time"
                raise HTTPException(413, sentence)
            complete = not message.get("more_body")
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["path"] not in _WITHOUT_POLICY:
                MutableHeaders(scope=message).update(_PAGE_HEADERS)
            await send(message)

        app, host, has_body = self._app, Headers(scope=scope).get("host", "").lower(), scope["method"] == "POST"
        if self._hosts is not None and not {host, host.rpartition(":")[0]} & {*self._hosts}:
            sentence = "the server accepts requests to localhost only: start it with --host for others"
            app = JSONResponse({"error": sentence}, 421)
        elif has_body and self._requests >= _MAX_REQUESTS:
            app = JSONResponse({"error": f"{_MAX_REQUESTS} requests are in progress: try again later"}, 503)
        self._requests += has_body
        try:
            await app(scope, receive_limited, send_with_headers)
        finally:
            self._requests -= has_body


# Held by the thread that predicts.
_predicting = threading.Lock()
# The time of an explanation grows with the square of the atoms.
_MAX_EXPLAINED_ATOMS = 120


class ServedModel:
    """A model in memory, and the processes that parse SMILES for it; no file of its run directory is read later. One
    thread predicts at a time, while another may explain, since explanations have networks of their own."""

    def __init__(self, name: str, model: Model, pool: Pool = None) -> None:
        self.name, self.model, self._pool = name, model, pool
        values = {column: np.zeros(1, np.float32) for column in model.feature_columns}
        # Loads the names of training molecules, and compiles kernels, before the first request.
        self.predict(["CCO"], values, None, nearest=model.calibration is not None)

    def describe(self) -> dict[str, Any]:
        """Describe the model as :meth:`Model.describe` does, without paths, with what requests must or may give."""
        facts = {key: value for key, value in self.model.describe().items() if key != "folder"}
        tasks, calibration = self.model.tasks, self.model.calibration
        groups = {group: [task.name for task in tasks if task.group == group] for group in GROUPS}
        return {
            "name": self.name,
            **facts,
            "columns": self.model.feature_columns,
            "groups": {group: names for group, names in groups.items() if names},
            "better": {task.name: task.better for task in tasks if task.better},
            "reference": {task.name: task.reference for task in tasks if task.reference},
            "compared": calibration and calibration.domain.molecules,
        }

    def predict(
        self,
        smiles: Sequence[Any],
        columns: dict[str, np.ndarray],  # float32 [R]
        interval: float | None,
        nearest: bool,
        over: threading.Event | None = None,  # set when nobody waits any longer
    ) -> list[dict[str, Any]]:
        """Return the SMILES of R molecules with the columns of ``graphslice predict``."""

        def stop_if_over(rows: int) -> None:
            if over is not None and over.is_set():
                raise TimeoutError

        rows, read = smiles_rows(smiles, columns), TableColumns("smiles", features=tuple(columns))
        chunks = [*self.model.featurize_rows([rows], read, self._pool, stop_if_over)]
        with _predicting:
            (table,) = predict_chunks(self.model, chunks, interval=interval, nearest=nearest)
        return [*plain_rows(table.drop_columns(list(columns)))]

    @cached_property
    def _explained(self) -> Model:
        """The model with its networks as torch modules, which round differently from the compiled program."""
        return Model(self.model.checkpoints, self.model.device, calibration=self.model.calibration)

    def explain(self, smiles: str, target: str | None, columns: Columns, orders: int) -> dict[str, Any]:
        """Explain a prediction: its numbers and texts, and ``svg``, the picture."""
        # In the pool: RDKit may crash or hang on it, and would stop the server.
        config = replace(self.model.config.graph, max_atoms=_MAX_EXPLAINED_ATOMS)
        _, (reason,), *_ = parse([smiles], config, self._pool)
        if reason is not None:
            raise InputError(f"cannot explain the prediction: {reason}")
        explanation, picture = explain_molecule(self._explained, smiles, target, orders, columns)
        return {
            "quantity": explanation.quantity,
            "prediction": explanation.prediction,
            "baseline": explanation.baseline,
            "contributions": explanation.values.tolist(),
            "standard_errors": without_nan(explanation.errors.tolist()),
            "notes": list(explanation.notes),
            "warning": explanation.warning or None,
            "svg": picture.svg,
        }


def read_file(name: str, content: bytes, pool: Pool = None) -> dict[str, Any]:
    """Convert a workbook or SDF file to CSV, with notes, in a process of the pool, which a hostile file may end."""
    suffix = Path(name).suffix.lower()
    if suffix not in EXCEL_SUFFIXES + SDF_SUFFIXES:
        raise InputError(f"{shown(name)} is neither .xlsx nor .sdf")
    with TemporaryDirectory() as folder:
        path = Path(folder, f"file{suffix}")
        path.write_bytes(content)
        try:
            (result,) = [(_to_csv([str(path)]), None)] if pool is None else pool.isolate(_to_csv, str(path)).result()
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}{os.sep}", "")) from None
    (csv, notes), reason = result
    if reason is not None:
        raise InputError("the file crashes the reader, or takes too long to read: use graphslice predict")
    return {"csv": csv, "notes": [note.replace(f"{folder}{os.sep}", "") for note in notes]}


def _to_csv(paths: Sequence[str]) -> tuple[str, list[str]]:
    path, faults, size = Path(paths[0]), list[str](), 0
    if not path.name:  # the first call of a process, which has no time limit
        return "", []
    too_large = InputError(f"{path} has more than {_UNPACKED_BYTES:,} bytes when it is unpacked")
    with file_errors("read", path, BadZipFile):
        if is_zipfile(path) and sum(part.file_size for part in ZipFile(path).infolist()) > _UNPACKED_BYTES:
            raise too_large
    copy = path.with_suffix(".csv")
    with open_table(path) as table, write_table(copy) as sink:
        for rows in table.chunks:
            sink.write(rows.table)
            faults += rows.faults.values()
            size += rows.table.nbytes  # a text that many cells share is one of the parts
            if size > _UNPACKED_BYTES:
                raise too_large
    lost = [f"{pluralize(len(faults), 'record')} without a structure; the first: {faults[0]}"] if faults else []
    return copy.read_bytes().decode(), table.notes + lost


def draw_molecules(smiles: Sequence[Any], pool: Pool = None) -> list[str | None]:
    """Draw molecules as SVG; None where there is no drawing: see :func:`~graphslice.report.drawing.draw_molecule`."""
    smiles = [text if isinstance(text, str) else "" for text in smiles]
    if pool is None:
        return _draw(smiles)
    futures = [pool.submit(_draw, task) for task in tasks(smiles, _CHUNK)]
    return [svg or None for future in futures for drawings, _ in future.result() for svg in drawings]


def _draw(smiles: Sequence[str]) -> list[str | None]:
    return [draw_molecule(text) for text in smiles]
