"""Headless Chromium driven over a pipe with the DevTools protocol, without a driver package."""

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
_SECONDS = 90


class Browser:
    """One page of a Chromium process; ``folder``: directory of its profile."""

    def __init__(self, folder: Path) -> None:
        (child_read, self._write), (self._read, child_write) = os.pipe(), os.pipe()

        def use_descriptors_3_and_4() -> None:
            os.dup2(child_read, 1000)
            os.dup2(child_write, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        command = [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, close_fds=False, preexec_fn=use_descriptors_3_and_4, **quiet)
        os.close(child_read)
        os.close(child_write)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        """Send a command, wait for its response and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            response = self._next()
            if response.get("id") == self._number:
                if "error" in response:
                    raise RuntimeError(f"{method}: {response['error']}")
                return response["result"]
            self.events.append(response)

    def _next(self) -> dict:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not respond")
            if not (more := os.read(self._read, 1 << 20)):
                raise RuntimeError("the browser ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path | str, width: int, scheme: str) -> None:
        """Load a file or a URL in a viewport of ``width`` pixels, with the colour scheme ``light`` or ``dark``."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str):
        """Evaluate a JavaScript expression, or promise, on the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        return self.call("Runtime.evaluate", expression=expression, **options)["result"].get("value")

    def console_errors(self) -> list[dict]:
        """List the errors and warnings of the console since the page was opened."""
        self.value("1")
        exceptions = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e for e in self.events if e.get("method") == "Log.entryAdded"]
        return [*exceptions, *(e for e in logged if e["params"]["entry"]["level"] in ("error", "warning"))]

    def requests(self) -> list[str]:
        """List the URLs that the page requested."""
        self.value("1")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def close(self) -> None:
        """Close the browser."""
        with suppress(Exception):
            self._session = None
            self.call("Browser.close")
        os.close(self._write)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
