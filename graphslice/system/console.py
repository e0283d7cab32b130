"""Handlers of Ctrl-C and SIGTERM, the progress of work, which they end, and remarks."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

#: A console that prints nothing.
QUIET = Console(quiet=True)
_STOPPING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
# Seconds between two lines of progress in a log file.
_LINE_SECONDS = 60


def remark(text: str, console: Console | None = None, kind: str = "note") -> None:
    """Print a remark, ``note`` or ``warning``, to a console, by default to standard error."""
    console = console or Console(stderr=True)
    console.print(Text.assemble((kind, "yellow"), f": {text}"), highlight=False, soft_wrap=True)


def result(text: str, console: Console) -> None:
    """Print a result: to standard output if the console writes to standard error."""
    console = Console(quiet=console.quiet) if console.stderr else console
    console.out(text, highlight=False)


class _Remarks(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        remark(record.getMessage(), kind="note" if record.levelno < logging.WARNING else "warning")


@contextmanager
def log_printed(details: bool) -> Iterator[None]:
    """Context manager that prints the log of the package as remarks; ``details``: what no user can act on, too."""
    log, handler = logging.getLogger("graphslice"), _Remarks()
    log.addHandler(handler)
    log.setLevel(logging.INFO if details else logging.NOTSET)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


@contextmanager
def signals_handled(handler: Callable[[int, Any], Any], numbers: Iterable[int]) -> Iterator[None]:
    """Context manager with another handler of some signals; no effect except in the main thread, which handles them."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Context manager that raises KeyboardInterrupt at its end if Ctrl-C was pressed within it."""
    stopped: list[int] = []
    with signals_handled(lambda number, _: stopped.append(number), [signal.SIGINT] if interrupts_are_handled() else []):
        yield
    if stopped:
        raise KeyboardInterrupt


def interrupts_are_handled() -> bool:
    """True if Ctrl-C raises KeyboardInterrupt; shells ignore it in programs in the background."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


class WorkProgress:
    """Progress of some work with an estimate of the remaining time, as a context manager: a bar on a terminal, and in a
    log file a line a minute. ``done`` is the fraction that was done before, None if the total is unknown."""

    def __init__(self, what: str, console: Console, done: float | None = 0.0) -> None:
        self._what, self._console, self._before = what, console, done or 0.0
        columns = TextColumn(what), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}")
        times = TimeElapsedColumn(), TextColumn("remaining"), TimeRemainingColumn()
        hidden = console.quiet or not console.is_terminal
        self._bar = Progress(*columns, *times, console=console, transient=True, disable=hidden)
        self._task = self._bar.add_task("", total=None if done is None else 1.0)
        self._bar.update(self._task, completed=self._before)

    def __enter__(self) -> WorkProgress:
        self._bar.start()
        self._begin = self._printed = monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: float | None, what: str, molecules: int) -> None:
        """Show the fraction that is ``done``, and the rate of the molecules since the beginning."""
        now = monotonic()
        elapsed = max(1e-9, now - self._begin)
        status = f"{what}, {molecules / elapsed:,.0f} molecules/s"
        self._bar.update(self._task, completed=done, description=status)
        if self._console.is_terminal or now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        share, remaining = "", ""
        if done is not None:
            left = elapsed / max(1e-9, done - self._before) * (1 - done)
            share, remaining = f"{100 * done:.0f}%, ", f", {timedelta(seconds=round(left))} remaining"
        line = f"{self._what}: {share}{status}, {timedelta(seconds=round(elapsed))} elapsed{remaining}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def molecule_progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    """Context manager that shows a :class:`WorkProgress`, and yields a function of the number of molecules newly done.

    The function also raises the exception of Ctrl-C or SIGTERM again, which compiled code and callbacks lose.
    """
    handlers = {number: handler for number in _STOPPING if callable(handler := signal.getsignal(number))}
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        handlers[number](number, frame)

    count, of_total = 0, "" if total is None else f" of {total:,}"
    with signals_handled(handle, handlers), WorkProgress(what, console, 0.0 if total else None) as progress:

        def advance(molecules: int) -> None:
            nonlocal count
            for number in received:
                handlers[number](number, None)
            count += molecules
            progress.update(min(1.0, count / total) if total else None, f"{count:,}{of_total}", count)

        yield advance


def status(what: str, console: Console) -> AbstractContextManager[object]:
    """Show a spinner if the console is a terminal; in notebooks rich would ask for ipywidgets."""
    return console.status(what) if console.is_terminal else nullcontext()
