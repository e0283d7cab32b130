"""Handlers of Ctrl-C and SIGTERM, the progress of work, which they end, and remarks."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

#: A console that prints nothing.
QUIET = Console(quiet=True)
_STOPPING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
# Seconds between two lines of progress in a log file.
_LINE_SECONDS = 60


@cache
def standard_error() -> Console:
    """Return the console of standard error: one, since what it prints stands above its line of progress."""
    return Console(stderr=True, soft_wrap=True)


def remark(text: str, console: Console | None = None, kind: str = "note") -> None:
    """Print a remark, ``note`` or ``warning``, to a console, by default to standard error."""
    console = console or standard_error()
    console.print(Text.assemble((kind, "yellow"), f": {text}"), highlight=False, soft_wrap=True)


def result(text: str, console: Console) -> None:
    """Print a result: to standard output if the console writes to standard error. Where both are terminals, the console
    prints it, above its line of progress."""
    if console.stderr and not (console.is_terminal and sys.stdout.isatty()):
        console = Console(quiet=console.quiet)
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


#: A report of progress: the fraction that is done, 0 to 1, or None if the total is unknown; and a status, empty
#: for what was done before.
Report = Callable[[float | None, str], object]


def silent(done: float | None, status: str) -> None:
    """A report that nobody reads."""


def divide(report: Report, *shares: float) -> list[Report]:
    """Divide work into parts that are done one after the other; return the report of each, given its share of the
    time."""

    def part(begin: float, share: float) -> Report:
        return lambda done, status: report((begin + share * (done or 0.0)) / sum(shares), status)

    return [part(sum(shares[:number]), share) for number, share in enumerate(shares)]


class WorkProgress:
    """Progress of some work with elapsed and remaining time, as a context manager: one line with a bar on a terminal,
    and in a log file a line a minute. The fraction never falls."""

    def __init__(self, what: str, console: Console) -> None:
        self._what, self._console = what, console
        self._done = self._before = 0.0
        self._left: float | None = None
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        self._bar = Progress(
            *(TaskProgressColumn(), BarColumn(8), text, _Times(self._times)),
            console=console,
            transient=True,
            disable=console.quiet or not console.is_terminal,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),  # results are printed above the bar; elsewhere they go to a file
        )
        self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> WorkProgress:
        self._begin = self._updated = self._printed = monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: float | None, status: str, molecules: int | None = None) -> None:
        """Take a :data:`Report`, with the rate of the ``molecules`` since the beginning if they are given."""
        self._updated = now = monotonic()
        elapsed, share = max(1e-9, now - self._begin), ""
        if molecules is not None:
            status = f"{status}, {molecules / elapsed:,.0f}/s"
        if done is not None:
            done = max(done, self._done)
            self._before += 0.0 if status else done - self._done
            self._left = elapsed / (done - self._before) * (1 - done) if done > self._before else None
            self._done, share = done, f"{100 * done:.0f}%, "
            self._bar.update(self._task, total=1.0, completed=done)
        if not status:
            return
        self._bar.update(self._task, description=f"{self._what}: {status}")
        if self._console.is_terminal or now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        line = f"{self._what}: {share}{status}, {self._times(now)}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _times(self, now: float) -> str:
        """Return the elapsed and the remaining time; the latter falls between two reports."""
        times = {"elapsed": now - self._begin}
        if self._left is not None:
            times["left"] = max(0.0, self._left - (now - self._updated))
        return ", ".join(f"{timedelta(seconds=round(seconds))} {name}" for name, seconds in times.items())


class _Times(ProgressColumn):
    """The times of some work, which go on without reports."""

    def __init__(self, times: Callable[[float], str]) -> None:
        super().__init__(Column(no_wrap=True))
        self._times = times

    def render(self, task: Task) -> Text:
        return Text(self._times(monotonic()))


@contextmanager
def molecules_counted(
    total: int | None, show: Callable[[float | None, str, int], object]
) -> Iterator[Callable[[int], None]]:
    """Context manager that shows how many of the molecules are done, and yields a function of the number newly done.

    The function also raises the exception of Ctrl-C or SIGTERM again, which compiled code and callbacks lose.
    """
    handlers = {number: handler for number in _STOPPING if callable(handler := signal.getsignal(number))}
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        handlers[number](number, frame)

    count, of_total = 0, "" if total is None else f" of {total:,}"

    def advance(molecules: int) -> None:
        nonlocal count
        for number in received:
            handlers[number](number, None)
        count += molecules
        show(min(1.0, count / total) if total else None, f"{count:,}{of_total}", count)

    with signals_handled(handle, handlers):
        yield advance


@contextmanager
def molecule_progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    """Context manager of :func:`molecules_counted` that shows a :class:`WorkProgress`."""
    with WorkProgress(what, console) as progress, molecules_counted(total, progress.update) as advance:
        yield advance


def status(what: str, console: Console) -> AbstractContextManager[object]:
    """Show a spinner if the console is a terminal; in notebooks rich would ask for ipywidgets."""
    return console.status(what) if console.is_terminal else nullcontext()
