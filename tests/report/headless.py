"""A headless Chromium, asked through a pipe in its own protocol, so that no package is needed to drive it."""

import base64
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
    """One page of a Chromium; ``folder`` becomes its profile."""

    def __init__(self, folder: Path) -> None:
        (there, self._write), (self._read, back) = os.pipe(), os.pipe()

        def as_three_and_four() -> None:
            os.dup2(there, 1000)
            os.dup2(back, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        command = [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, close_fds=False, preexec_fn=as_three_and_four, **quiet)
        os.close(there)
        os.close(back)
        self._buffer, self._number, self._session, self.events = b"", 0, None, []
        target = self.ask("Target.getTargets")["targetInfos"][0]["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters) -> dict:
        """Send a command, and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)

    def _next(self) -> dict:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            if not (more := os.read(self._read, 1 << 20)):
                raise RuntimeError("the browser ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Show a file, so many pixels wide, on a ``light`` or ``dark`` page."""
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str):
        """What a piece of JavaScript gives on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def console_errors(self) -> list[dict]:
        """What the console would show in red, so far."""
        self.value("1")
        wrong = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e for e in self.events if e.get("method") == "Log.entryAdded"]
        return [*wrong, *(e for e in logged if e["params"]["entry"]["level"] in ("error", "warning"))]

    def requests(self) -> list[str]:
        """What the page asked for."""
        self.value("1")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        taken = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        """End the browser."""
        with suppress(Exception):
            self._session = None
            self.ask("Browser.close")
        os.close(self._write)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
