"""The tools of ``graphslice mcp``, the server, and the folder that the tools may read and write.

What reads SMILES is computed by models that stay loaded. What reads and writes files runs as a command in a process of
its own, whose document is the result, so that it can be cancelled and the server survives it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import anyio
import anyio.to_thread
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from graphslice._version import __version__
from graphslice.api.model import Model, load
from graphslice.data.featurize import Pool, featurizer_pool
from graphslice.data.formats import split_sheet
from graphslice.data.tables import plain_rows
from graphslice.errors import InputError, check_file, check_known, shown
from graphslice.inference.files import interval_notes, open_molecules, predict_chunks
from graphslice.inference.inputs import smiles_rows
from graphslice.inference.predictions import output_columns
from graphslice.runs.run_files import contains_run, without_nan
from graphslice.serve.documents import Description, Evaluation, Explanations, Predictions, Run, Text
from graphslice.system.console import signals_handled
from graphslice.system.hub import local_path
from graphslice.system.machine import MODELS, PRETRAINED_MODEL, is_packaged_model

# Longest message about invalid arguments, which may quote them.
_LONGEST_MESSAGE = 500
# Seconds between two reports of progress, which keep a client waiting.
_REPORT_SECONDS = 5.0
#: Names of the tools, which are methods of :class:`Tools`; and those that write files.
TOOLS = ("predict", "predict_file", "describe_model", "explain", "train", "evaluate")
_WRITING = ("predict_file", "train")

_Smiles = Annotated[list[Text], Field(description="1 to 1,000 SMILES", min_length=1, max_length=1000)]
_FewSmiles = Annotated[list[Text], Field(description="1 to 20 SMILES", min_length=1, max_length=20)]
_Model = Annotated[
    str | None,
    Field(description="name of a model, or run directory in the folder (default: the first model of the server)"),
]
_Interval = Annotated[
    float | None, Field(description="coverage in percent, such as 90: adds prediction intervals and in_domain")
]
_Nearest = Annotated[bool, Field(description="add the most similar training molecule")]
_Table = Annotated[str, Field(description="path of the table")]
_NewTable = Annotated[str, Field(description="path of a new CSV, TSV, Excel or Parquet file")]
_NewRun = Annotated[str, Field(description="path of the new run directory")]
_Targets = Annotated[
    str | None, Field(description="target columns, separated by commas (default: those of the model, or the only one)")
]
_SmilesColumn = Annotated[str | None, Field(description="column of the SMILES (default: detected by its name)")]
_Split = Annotated[str | None, Field(description="random, scaffold, cluster, or a column of train, valid, test")]
_Part = Annotated[str | None, Field(description="train, valid, test or all")]
_Minutes = Annotated[float | None, Field(description="upper limit of the time of each network")]
_Epochs = Annotated[int | None, Field(description="passes over the training set")]
_Ensemble = Annotated[int | None, Field(description="number of ensemble members")]


class Tools:
    """The tools, as methods whose annotations and first line clients see; the first of the models is the default.
    ``pool`` reads SMILES."""

    def __init__(self, folder: Folder, models: Sequence[str], pool: Pool = None) -> None:
        self.folder, self._pool = folder, pool
        self._computing = threading.RLock()  # the computations of a process share its cores
        self.models = {name: model_path(name) for name in models}
        self.models |= {name: name for name in MODELS if name != PRETRAINED_MODEL}
        for name in models:
            self.load(name)

    def find(self, name: str | None) -> str:
        """Return the path of a model that the server was given or the package has, or of a run in the folder."""
        name = next(iter(self.models)) if name is None else name
        if name in self.models:
            return self.models[name]
        path = self.folder.inside(name)
        if not contains_run(path):
            check_known("model or run directory", name, self.models)
        return str(path)

    def load(self, name: str | None, use: str = "predict") -> Model:
        """Load a model for a use, again if its files have changed; the last four stay in memory."""
        path = self.find(name)
        files = [Path(path), *Path(path).rglob("*.safetensors")]
        changed = max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)
        with self._computing:
            return _load(path, use, changed)

    def predict(
        self, smiles: _Smiles, model: _Model = None, interval: _Interval = None, nearest: _Nearest = False
    ) -> Predictions:
        """Predict the properties of molecules. A row without a prediction says why in `error`."""
        predictor = self.load(model)
        predictor.check_calibrated(interval, nearest)
        with open_molecules(predictor, smiles) as (molecules, columns_read):
            chunks = [*predictor.featurize_rows(molecules.chunks, columns_read, self._pool)]
        with self._computing:
            (table,) = predict_chunks(predictor, chunks, interval=interval, nearest=nearest)
        columns = output_columns(predictor.tasks, predictor.num_models > 1, interval, nearest)
        return {
            "rows": [*plain_rows(table)],
            "columns": columns,
            "total": len(smiles),
            "failed": len(smiles) - table["error"].null_count,
            "notes": interval_notes(predictor, interval),
        }

    def explain(self, smiles: _FewSmiles, model: _Model = None) -> Explanations:
        """Explain predictions: the contribution of each atom (Shapley values), for molecule-level targets."""
        from graphslice.explain.inspect import InputMolecule, explain  # imports torch, which takes seconds

        predictor = self.load(model, "explain")  # its networks become torch modules, which round otherwise
        rows = smiles_rows(smiles)
        given = [
            InputMolecule(text, error=reason) for text, reason in zip(rows.smiles("smiles"), rows.errors, strict=True)
        ]
        with self._computing:
            return Explanations(**explain(predictor, given).to_dict(predictor.targets))  # type: ignore[typeddict-item]

    def describe_model(self, model: _Model = None) -> Description:
        """Describe a model: its targets, classes, architecture and scores."""
        loaded = self.load(model)
        return Description(**loaded.describe(), metrics=loaded.metrics)  # type: ignore[typeddict-item]

    async def predict_file(
        self, table: _Table, out: _NewTable, model: _Model = None, interval: _Interval = None
    ) -> Predictions:
        """Predict every row of a table (CSV, TSV, Excel, Parquet, SDF, .smi), and write it with the predictions."""
        path, output = self.folder.inside(table), self.folder.inside(out)
        if not path.is_dir():
            check_file(split_sheet(path)[0])  # the command would read the name as SMILES
        return await self._command("predict", self.find(model), str(path), out=output, interval=interval)

    async def evaluate(
        self, dataset: _Table, model: _Model = None, targets: _Targets = None, split: _Part = None
    ) -> Evaluation:
        """Evaluate a model on a table with labels."""
        path, table = self.find(model), self.folder.inside(dataset)
        if path not in self.models.values():  # the run may name further files
            data = (await anyio.to_thread.run_sync(self.load, model)).config.data
            for file in filter(None, (data.valid_file, data.test_file)):
                self.folder.inside(file)
        return await self._command("evaluate", path, dataset=table, targets=targets, split=split)

    async def train(
        self,
        dataset: _Table,
        out: _NewRun,
        targets: _Targets = None,
        smiles_column: _SmilesColumn = None,
        split: _Split = None,
        minutes: _Minutes = None,
        epochs: _Epochs = None,
        ensemble: _Ensemble = None,
    ) -> Run:
        """Train a model on a table with a SMILES column and target columns, into a run directory. It takes minutes."""
        return await self._command(
            "train",
            dataset=self.folder.inside(dataset),
            out=self.folder.inside(out),
            targets=targets,
            split=split,
            epochs=epochs,
            ensemble=ensemble,
            **{"smiles-column": smiles_column, "trainer.max_minutes": minutes},
        )

    async def _command(self, *arguments: str, **options: Any) -> Any:
        """Run a command in a process of its own and return its document; options that are None are left out."""
        flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
        command = [sys.executable, "-P", "-m", "graphslice", *arguments, *flags, "--json"]
        done = await anyio.run_process(command, stdin=subprocess.DEVNULL, stderr=None, check=False)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            raise InputError(
                f"graphslice {arguments[0]} ended with exit code {done.returncode}: see the log of the server"
            ) from None
        if "error" in document:
            raise InputError(document["error"])
        return document


def model_path(name: str) -> str:
    """Return the absolute path of a model, or the name of a packaged one; one of the Hub is downloaded."""
    return name if is_packaged_model(name) else str(Path(local_path(name)).resolve())


@lru_cache(maxsize=4)
def _load(path: str, use: str, changed: int) -> Model:
    return load(path)


def make_server(tools: Tools) -> Server:
    """Return a server with the tools."""

    async def list_tools(context: ServerRequestContext, params: types.PaginatedRequestParams | None) -> Any:
        return types.ListToolsResult(tools=[describe_tool(name) for name in TOOLS])

    async def call_tool(context: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            check_known("tool", params.name, TOOLS)
            method = getattr(tools, params.name)
            # Checks the arguments, then calls the method.
            call = partial(TypeAdapter(method).validate_python, ArgsKwargs((), params.arguments or {}), strict=True)
            if inspect.iscoroutinefunction(method):
                async with anyio.create_task_group() as group:
                    group.start_soon(_report_progress, context)
                    document = await call()
                    group.cancel_scope.cancel()
            else:
                document = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        except Exception as raised:
            error = raised.exceptions[0] if isinstance(raised, ExceptionGroup) else raised  # of the task group
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                where = ": ".join(map(str, (params.name, *first["loc"])))
                return _error(f"{where}: {first['msg']}"[:_LONGEST_MESSAGE])
            if isinstance(error, InputError):
                return _error(str(error))
            traceback.print_exception(error)
            return _error(f"{params.name} failed: {type(error).__name__}; see the log of the server")
        document = without_nan(document)
        text = types.TextContent(type="text", text=json.dumps(document, allow_nan=False))
        return types.CallToolResult(content=[text], structured_content=document)

    instructions = (
        f"Predicts properties of molecules. Models: {', '.join(tools.models)} (the first is the default), and run "
        f"directories that train makes. Paths are relative to {tools.folder.path}."
    )
    return Server(
        "graphslice",
        version=__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def describe_tool(name: str) -> types.Tool:
    """Return the description of a tool, with the schemas of its arguments and of its result."""
    method = getattr(Tools, name)
    arguments = TypeAdapter[Any](partial(method, None)).json_schema()  # type: ignore[arg-type]
    kind = get_type_hints(method)["return"]
    result = TypeAdapter(list[kind], config=ConfigDict(use_attribute_docstrings=True)).json_schema()  # type: ignore[valid-type]
    kinds = result["$defs"]
    return types.Tool(
        name=name,
        description=inspect.getdoc(method),
        input_schema=arguments,
        output_schema={**kinds.pop(kind.__name__), "$defs": kinds},
        annotations=types.ToolAnnotations(read_only_hint=name not in _WRITING, destructive_hint=False),
    )


async def _report_progress(context: ServerRequestContext) -> None:
    """Report the elapsed seconds until cancelled."""
    began = time.monotonic()
    while True:
        await anyio.sleep(_REPORT_SECONDS)
        await context.session.report_progress(time.monotonic() - began)


def _error(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)


async def _input_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input. Ctrl-C and SIGTERM end the wait for a line, unlike that of the SDK."""
    file = os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # for whatever else reads it
    while line := await anyio.to_thread.run_sync(file.readline, abandon_on_cancel=True):
        yield line


def serve(folder: str | Path, models: Sequence[str]) -> None:
    """Serve the tools until standard input is closed; SystemExit after Ctrl-C or SIGTERM."""
    signals: list[int] = []  # received

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: int, _: Any) -> None:  # an exception would be raised in whatever task runs
            signals.append(number)
            loop.call_soon_threadsafe(task.cancel)  # type: ignore[union-attr]

        with signals_handled(stop, (signal.SIGINT, signal.SIGTERM)):
            async with stdio_server(_input_lines()) as (read, write):  # type: ignore[arg-type]
                await server.run(read, write, server.create_initialization_options())

    with featurizer_pool(0) as pool:  # its end ends a call that is in progress
        server = make_server(Tools(Folder(folder), models, pool))
        try:
            anyio.run(run)
        finally:  # the SDK raises other exceptions where it is cancelled while it writes
            if signals:
                raise SystemExit(128 + signals[0])


# Most bytes of a file, so that a client cannot occupy the machine for days.
_MOST_BYTES = 1 << 30


class Folder:
    """A folder that holds all files that are read and written. Who may replace its files by links meanwhile can lead
    outside, since a path is checked when it is named."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_dir():
            raise InputError(f"{path} is not a folder")

    def inside(self, name: str) -> Path:
        """Return the absolute path of a file or folder inside, which need not exist; ``name`` may name a sheet too.
        Raises :class:`InputError` if it is outside or too large, has a part ``..``, or is or has a link that leads
        out."""
        path = self.path / name
        try:
            path.exists()  # raises for a name that is too long
            file, _ = split_sheet(path)
            within = (Path(root, one) for root, folders, files in os.walk(file) for one in (*folders, *files))
            outside = next((one for one in chain([file], within) if not one.resolve().is_relative_to(self.path)), None)
        except (OSError, RuntimeError, ValueError):  # also for a loop of links, and a null character
            raise InputError(f"{shown(name)} is not a path") from None
        if outside is not None or ".." in path.parts:
            raise InputError(f"{shown(name)} leads out of the folder: give a path inside {self.path}, without '..'")
        if file.is_file() and file.stat().st_size > _MOST_BYTES:
            raise InputError(f"{shown(name)} has more than {_MOST_BYTES:,} bytes: use the command line")
        return path
