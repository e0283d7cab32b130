"""What an operator sees of a server: metrics in the text format of Prometheus, and a line of log for each request.

Neither contains what a client wrote, since SMILES are confidential: a path that the server does not have is ``other``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60


class Metrics:
    """The metrics of a server; ``models`` returns the number of models that are loaded."""

    def __init__(self, models: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "graphslice_requests", "Requests by path and status.", ("path", "status"), registry=registry
        )
        self.molecules = Counter("graphslice_molecules", "Molecules of predictions that were sent.", registry=registry)
        self.seconds = Histogram(
            "graphslice_request_seconds", "Time of a request.", ("path",), buckets=_SECONDS, registry=registry
        )
        self.waiting = Gauge("graphslice_requests_waiting", "POST requests in progress.", registry=registry)
        loaded = Gauge("graphslice_models_loaded", "Models that are loaded and warm.", registry=registry)
        loaded.set_function(models)
        ProcessCollector(registry=registry)

    def text(self) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class Monitor:
    """ASGI middleware that counts and logs requests; ``paths``: those that the server has. An endpoint may set
    ``request.state.molecules``."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, status, begin = self._metrics, 500, time.perf_counter()  # an exception becomes 500 outside
        state = scope.setdefault("state", {})

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        is_post = scope["method"] == "POST"
        metrics.waiting.inc(is_post)
        try:
            await self._app(scope, receive, send_and_note)
        finally:
            metrics.waiting.dec(is_post)
            seconds, molecules = time.perf_counter() - begin, state.get("molecules", 0)
            path = scope["path"] if scope["path"] in self._paths else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
            metrics.requests.labels(path, status).inc()
            metrics.seconds.labels(path).observe(seconds)
            metrics.molecules.inc(molecules if status == 200 else 0)
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = f"{now} {method} {path} {status} {molecules} molecules {1_000 * seconds:.0f} ms"
            print(line, file=sys.stderr, flush=True)
