"""Handlers of Ctrl-C and SIGTERM, and progress of work on many molecules, which they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_STOPPING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)


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


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} mol/s" if task.speed else "")


@contextmanager
def molecule_progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    """Context manager that shows a progress bar on a terminal, and yields a function of the molecules newly done.

    The function also raises the exception of Ctrl-C or SIGTERM again, which compiled code and callbacks lose.
    """
    handlers = {number: handler for number in _STOPPING if callable(handler := signal.getsignal(number))}
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        handlers[number](number, frame)

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with signals_handled(handle, handlers), bar:
        task = bar.add_task("", total=total)

        def advance(molecules: int) -> None:
            for number in received:
                handlers[number](number, None)
            bar.advance(task, molecules)

        yield advance


def status(what: str, console: Console) -> AbstractContextManager[object]:
    """Show a spinner if the console is a terminal; in notebooks rich would ask for ipywidgets."""
    return console.status(what) if console.is_terminal else nullcontext()
