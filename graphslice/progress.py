"""Progress of work on many molecules: a bar on terminals, and points at which a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from graphslice.signals import signals_handled


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} mol/s" if task.speed else "")


@contextmanager
def molecule_progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    """Context manager that shows a progress bar if the console is a terminal.

    Args:
        what: description of the task.
        total: number of molecules, if known.
        console: console to print to.

    Yields:
        A function to call with the number of further molecules done. It raises the exception of a signal again, such
        as KeyboardInterrupt, if that was lost where Python cannot pass it on: compiled code and callbacks.
    """
    with _signals_recorded() as raise_again:
        if not console.is_terminal:
            yield lambda molecules: raise_again()
            return
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)

            def advance(molecules: int) -> None:
                raise_again()
                bar.advance(task, molecules)

            yield advance


def status(what: str, console: Console) -> AbstractContextManager[object]:
    """Show a spinner if the console is a terminal; in notebooks rich would ask for ipywidgets."""
    return console.status(what) if console.is_terminal else nullcontext()


@contextmanager
def _signals_recorded() -> Iterator[Callable[[], None]]:
    """Yield a function that calls the handlers of Ctrl-C and SIGTERM again if they were called."""
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        handlers[number](number, frame)

    def raise_again() -> None:
        for number in received:
            handlers[number](number, None)

    with signals_handled(handle, handlers):
        yield raise_again
