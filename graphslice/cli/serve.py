"""``graphslice serve``."""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_device, reject_pretrained
from graphslice.errors import check_number, check_positive, file_errors, optional_packages
from graphslice.system.machine import MODELS

MODULE = "graphslice.api.model"
EXAMPLES = "runs/my", "adme runs/my --port 8080"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice serve MODEL [MODEL ...] [options]"
    help_text = f"run directories, checkpoints, hf://user/name, or packaged models: {', '.join(MODELS)}"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=help_text)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, metavar="N", default=8000, help="port (default: 8000; 0 takes a free one)")
    parser.add_argument(
        "--max-molecules",
        type=int,
        metavar="N",
        default=1_000,
        help="largest number of molecules of a request (default: 1000)",
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="N", default=60.0, help="seconds for a request (default: 60)"
    )
    add_device(parser)


def run(options: Namespace, arguments: list[str]) -> None:
    """Serve models until the process is stopped; raise InputError for unusable input."""
    check_number("max_molecules", options.max_molecules, 1)
    check_positive("time_limit", options.time_limit)
    with optional_packages("graphslice serve", "serve"):
        import uvicorn

        from graphslice.serve.app import ServedModel, Service, create_app
    from graphslice.data.featurize import featurizer_pool

    listener = _listen(options.host, options.port)
    with listener, featurizer_pool(workers=2) as pool, ThreadPoolExecutor(1) as thread:
        service = Service(pool, options.max_molecules, options.time_limit)
        is_local = options.host in ("127.0.0.1", "localhost", "::1")
        app = create_app(service, hosts=("localhost", "127.0.0.1", "[::1]") if is_local else None)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        # In a thread, since /ready responds while models are loaded; not joined, since a signal would end the wait.
        running = thread.submit(server.run, [listener])
        try:
            models = _load_models(options.models, options.device)
            service.serve([ServedModel(name, model, pool) for name, model in models])
            host = f"[{options.host}]" if ":" in options.host else options.host
            address = f"http://{host}:{listener.getsockname()[1]}"
            names = ", ".join(service.models)
            print(f"serving {names} at {address}, the API at {address}/docs; Ctrl-C stops", flush=True)
            while not wait([running], 0.5).done:  # short: a signal just before it is only handled after it
                pass
        finally:
            server.should_exit = True
            running.result()
            service.close()


def _load_models(paths: list[str], device: str | None) -> list:
    """Load models; return pairs of a name, the last part of the path or all of it where that is not unique."""
    from graphslice.api.model import load

    paths = list(dict.fromkeys(paths))
    counts = Counter(Path(path).resolve().name for path in paths)
    models = []
    for path in paths:
        reject_pretrained(path)
        name = Path(path).resolve().name
        models.append((name if counts[name] == 1 else path, load(path, device or None)))
    return models


def _listen(host: str, port: int) -> socket.socket:
    """Bind a socket, before models are loaded, so that an occupied port is reported at once."""
    with file_errors("listen at", f"{host}:{port}", OverflowError):
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
