"""The tools of ``graphslice mcp``, and the server.

What reads SMILES is computed by models that stay loaded. What reads and writes files runs as a command in a process of
its own, whose document is the result, so that it can be cancelled and the server survives it.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import jsonschema
import pyarrow as pa
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from graphslice._version import __version__
from graphslice.api.model import Model, load
from graphslice.data.arrow import text_array
from graphslice.data.excel import split_sheet
from graphslice.data.tables import plain_rows
from graphslice.documents import TOOLS, schema
from graphslice.errors import InputError, nearest, shown
from graphslice.hub import local_path
from graphslice.inference.files import interval_notes, with_predictions
from graphslice.inference.predictions import output_columns
from graphslice.mcp.folder import Folder
from graphslice.package_data import MODELS, PRETRAINED_MODEL, is_packaged_model
from graphslice.run_files import contains_run, without_nan

# Largest number of molecules of a call.
_MAX_PREDICTED, _MAX_EXPLAINED = 1000, 20
# Longest message about invalid arguments, which may quote them.
_LONGEST_MESSAGE = 500
# Seconds between two reports of progress, which keep a client waiting.
_REPORT_SECONDS = 5.0


class Tools:
    """The tools, as methods with the names and arguments of :data:`~graphslice.documents.TOOLS`.

    Args:
        folder: what they may read and write.
        models: names or paths of models; the first one is the default.

    Raises:
        InputError: if a model cannot be read.
    """

    def __init__(self, folder: Folder, models: Sequence[str]) -> None:
        self.folder = folder
        self.models = {name: model_path(name) for name in models}
        self.models |= {name: name for name in MODELS if name != PRETRAINED_MODEL}
        for name in models:
            self.load(name)

    def find(self, name: str | None) -> str:
        """Return the path of a model: one that the server was given, one of the package, or a run in the folder."""
        name = next(iter(self.models)) if name is None else name
        if name in self.models:
            return self.models[name]
        path = self.folder.inside(name)
        if not contains_run(path):
            known = ", ".join(self.models)
            raise InputError(
                f"no model {shown(name)}{nearest(name, self.models)}: give one of {known}, or a run directory inside "
                f"{self.folder.path}"
            )
        return str(path)

    def load(self, name: str | None, use: str = "predict") -> Model:
        """Load a model for a use, again if its files have changed; the last four stay in memory."""
        path = self.find(name)
        files = [Path(path), *Path(path).rglob("*.safetensors")]
        return _load(path, use, max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0))

    def predict(
        self, smiles: list[str], model: str | None = None, interval: float | None = None, nearest: bool = False
    ) -> dict[str, Any]:
        """Predict SMILES."""
        _check_count(smiles, _MAX_PREDICTED, "write them to a file, and give it to predict_file")
        predictor = self.load(model)
        predictions = predictor.predict(smiles, details=True, interval=interval, nearest=nearest)
        table = with_predictions(pa.table({"smiles": text_array(smiles)}), predictions)
        columns = output_columns(predictor.tasks, predictor.num_models > 1, interval, nearest)
        counts = {"total": len(smiles), "failed": len(smiles) - predictions.errors.count(None)}
        notes = interval_notes(predictor, interval)
        return {"rows": [*plain_rows(table)], "columns": columns, **counts, "notes": notes}

    def explain(self, smiles: list[str], model: str | None = None) -> dict[str, Any]:
        """Explain predictions by atom contributions."""
        from graphslice.analysis.inspection import explain  # imports torch, which takes seconds

        _check_count(smiles, _MAX_EXPLAINED, "call explain several times")
        predictor = self.load(model, "explain")  # its networks become torch modules, which round otherwise
        return explain(predictor, smiles).to_dict(predictor.targets)

    def describe_model(self, model: str | None = None) -> dict[str, Any]:
        """Describe a model."""
        loaded = self.load(model)
        return {**loaded.describe(), "metrics": loaded.metrics}

    async def predict_file(
        self, table: str, out: str, model: str | None = None, interval: float | None = None
    ) -> dict[str, Any]:
        """Predict a table."""
        path = self.folder.inside(table)
        if not split_sheet(path)[0].exists():  # the command would read the name as SMILES
            raise InputError(f"no file at {path}")
        output = self.folder.inside(out)
        if output.exists():  # the command would name its option to overwrite it
            raise InputError(f"{output} exists already: choose another out")
        return await self._command("predict", self.find(model), str(path), out=output, interval=interval)

    async def evaluate(
        self, dataset: str, model: str | None = None, targets: str | None = None, split: str | None = None
    ) -> dict[str, Any]:
        """Evaluate a model on a table."""
        path, table = self.find(model), self.folder.inside(dataset)
        if path not in self.models.values():  # the run may name further files
            data = (await anyio.to_thread.run_sync(self.load, model)).config.data
            for file in filter(None, (data.valid_file, data.test_file)):
                self.folder.inside(file)
        return await self._command("evaluate", path, dataset=table, targets=targets, split=split)

    async def train(self, dataset: str, out: str, minutes: float | None = None, **options: Any) -> dict[str, Any]:
        """Train a model on a table."""
        paths = {"dataset": self.folder.inside(dataset), "out": self.folder.inside(out)}
        return await self._command("train", **paths, **options, **{"trainer.max_minutes": minutes})

    async def _command(self, *arguments: str, **options: Any) -> dict[str, Any]:
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
            raise InputError(_without_dashes(document["error"]))
        return document


def _without_dashes(message: str) -> str:
    """Name the options in a message of a command as arguments of a tool: ``smiles_column`` for ``--smiles-column``."""
    return re.sub(r"(?<![^\s(])--(\w[\w-]*)", lambda option: option[1].replace("-", "_"), message)


def model_path(name: str) -> str:
    """Return the absolute path of a model, or the name of a packaged one; one of the Hub is downloaded."""
    return name if is_packaged_model(name) else str(Path(local_path(name)).resolve())


@lru_cache(maxsize=4)
def _load(path: str, use: str, changed: int) -> Model:
    return load(path)


def _check_count(smiles: list[str], largest: int, advice: str) -> None:
    if not smiles:
        raise InputError("give at least one SMILES")
    if len(smiles) > largest:
        raise InputError(f"give at most {largest:,} SMILES in a call, not {len(smiles):,}: {advice}")


def make_server(tools: Tools) -> Server:
    """Return a server with the tools."""
    lock = anyio.Lock()  # the computations of a process share its cores

    async def list_tools(context: ServerRequestContext, params: types.PaginatedRequestParams | None) -> Any:
        return types.ListToolsResult(tools=[_describe_tool(name) for name in TOOLS])

    async def call_tool(context: ServerRequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            arguments = _checked_arguments(params.name, params.arguments or {})
            method = getattr(tools, params.name)
            if inspect.iscoroutinefunction(method):
                async with anyio.create_task_group() as group:
                    group.start_soon(_report_progress, context)
                    document = await method(**arguments)
                    group.cancel_scope.cancel()
            else:
                async with lock:
                    document = await anyio.to_thread.run_sync(partial(method, **arguments))
        except Exception as raised:
            error = raised.exceptions[0] if isinstance(raised, ExceptionGroup) else raised  # of the task group
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


def _describe_tool(name: str) -> types.Tool:
    tool = TOOLS[name]
    return types.Tool(
        name=name,
        description=tool.meaning,
        input_schema=schema(tool.inputs),
        output_schema=schema(tool.document),
        annotations=types.ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False),
    )


def _checked_arguments(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool; raise InputError for an unknown tool, or arguments against its schema."""
    if name not in TOOLS:
        raise InputError(f"no tool {shown(name)}{nearest(name, TOOLS)}: choose from {', '.join(TOOLS)}")
    validator = jsonschema.Draft202012Validator(schema(TOOLS[name].inputs))
    for error in validator.iter_errors(arguments):
        where = "".join(f"{part}: " for part in error.absolute_path)
        raise InputError(f"{name}: {where}{error.message[:_LONGEST_MESSAGE]}")
    return arguments


async def _report_progress(context: ServerRequestContext) -> None:
    """Report the elapsed seconds until cancelled."""
    began = time.monotonic()
    while True:
        await anyio.sleep(_REPORT_SECONDS)
        await context.session.report_progress(time.monotonic() - began)


def _error(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)


def serve(folder: str | Path, models: Sequence[str]) -> None:
    """Serve the tools until standard input is closed; arguments and errors as of :class:`Folder` and :class:`Tools`."""
    server = make_server(Tools(Folder(folder), models))

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)
