"""Progress bar for interactive terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} mol/s" if task.speed else "")


@contextmanager
def molecule_progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None] | None]:
    """Context manager that shows a progress bar if the console is a terminal.

    Args:
        what: description of the task.
        total: number of molecules, if known.
        console: console to print to.

    Yields:
        A function to call with the number of further molecules done; None if the console is no terminal.
    """
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda molecules: bar.advance(task, molecules)
