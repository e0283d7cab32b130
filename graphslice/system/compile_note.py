"""A note about the compilation of kernels, which takes half a minute on first use and would look like a standstill."""

from __future__ import annotations

from functools import lru_cache

from numba.core.event import Event, Listener, register

from graphslice.system.console import remark


class _Note(Listener):
    """Listener that prints the note once."""

    def on_start(self, event: Event) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith("graphslice."):
            _print_note()

    def on_end(self, event: Event) -> None:
        pass


@lru_cache(None)
def _print_note() -> None:
    remark("compiling kernels for this processor, each once after an installation")


@lru_cache(None)
def announce_compilation() -> None:
    """Print a note to standard error when numba compiles the first kernel of this process that is not in its cache."""
    register("numba:compile", _Note())
