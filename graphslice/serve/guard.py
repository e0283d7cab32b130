"""Limits that hold before a request is parsed: host name, number of requests, size and time of the body."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Requests with a body in progress, waiting ones included.
_MAX_REQUESTS = 128
# Seconds in which a body must arrive.
_BODY_SECONDS = 30
#: Headers of the page: it runs no script but its own, and sends data to no other host.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Guard:
    """ASGI middleware that reads the body of a request under limits, and sets headers of security.

    Args:
        app: the application.
        max_bytes: largest body.
        hosts: accepted names in the header ``Host``; None accepts all. A page from elsewhere whose name was made to
            resolve to this machine (DNS rebinding) has another one.
        without_policy: paths whose pages have scripts inside, for which the content security policy is left out.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, hosts: Collection[str] | None, without_policy: Collection[str] = ()
    ) -> None:
        self._app, self._max_bytes, self._hosts, self._without_policy = app, max_bytes, hosts, without_policy
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["path"] not in self._without_policy:
                MutableHeaders(scope=message).update(_PAGE_HEADERS)
            await send(message)

        host, is_work = Headers(scope=scope).get("host", "").lower(), scope["method"] not in ("GET", "HEAD")
        if self._hosts is not None and host.rpartition(":")[0] not in self._hosts and host not in self._hosts:
            sentence = "the server accepts requests to localhost only: start it with --host for others"
            await _error(421, sentence)(scope, receive, send_with_headers)
        elif is_work and self._requests >= _MAX_REQUESTS:
            sentence = f"{_MAX_REQUESTS} requests are in progress: try again later"
            await _error(503, sentence)(scope, receive, send_with_headers)
        else:
            self._requests += is_work
            try:
                await (self._handle if is_work else self._app)(scope, receive, send_with_headers)
            finally:
                self._requests -= is_work

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then call the application with it."""
        body, size, more = bytearray(), 0, True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    size, more = size + len(message.get("body", b"")), message.get("more_body", False)
                    if size <= self._max_bytes:
                        body += message.get("body", b"")
                    # The rest of a body that is too long is read and dropped: many clients read no response before.
        except TimeoutError:
            await _error(408, f"the request did not arrive within {_BODY_SECONDS} s")(scope, receive, send)
            return
        if size > self._max_bytes:
            sentence = f"the request has more than {self._max_bytes:,} bytes: send fewer molecules at a time"
            await _error(413, sentence)(scope, receive, send)
            return
        unread: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def receive_body() -> Message:
            nonlocal unread
            message, unread = unread, None
            return message or await receive()

        await self._app(scope, receive_body, send)


def _error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, {"retry-after": "1"} if status == 503 else None)
