"""A note about the compilation of kernels, which takes half a minute on first use and would look like a standstill."""

from __future__ import annotations

import time
from functools import lru_cache

from numba.core.event import Event, Listener, register

from graphslice.system.console import remark

# Seconds of compilation before the note: some small functions are compiled in every process.
_SECONDS = 1.0


class _Note(Listener):
    """Listener that prints the note once, when the compilations of this process exceed the limit."""

    def __init__(self) -> None:
        self.seconds, self.printed = 0.0, False
        self._depth, self._begin = 0, 0.0

    def on_start(self, event: Event) -> None:
        self._begin = self._begin if self._depth else time.monotonic()
        self._depth += 1
        if self.seconds + time.monotonic() - self._begin > _SECONDS and not self.printed:
            self.printed = True
            remark("compiling kernels for this processor, each once after an installation")

    def on_end(self, event: Event) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.monotonic() - self._begin


@lru_cache(None)
def announce_compilation() -> None:
    """Print a note to standard error, once, when numba compiles for more than a second in this process."""
    register("numba:compile", _Note())
