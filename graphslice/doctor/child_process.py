"""Checks in a process of their own: one that crashes or hangs is an answer too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from graphslice.processes import process_context, process_startup, replace_environment

#: Seconds that a check may be silent.
TIMEOUT_SECONDS = 900.0


class ChildDied(Exception):
    """The process of a check ended, or was ended, without an answer; the message says how."""


def run_in_child(
    check: Callable[..., Iterator[Any]],
    names: Sequence[str],
    arguments: tuple,
    *,
    one_process: bool,
    on_start: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[str, Any]]:
    """Run ``check(name, *arguments)`` for each name outside of this process.

    Args:
        check: of a module, so that another process finds it; yields what it found.
        names: of what is checked.
        arguments: that can be pickled.
        one_process: in one process, as long as it lives, instead of one for each name.
        on_start: called with each name before its check.

    Yields:
        The name and each thing that was found, or :class:`ChildDied`.
    """
    waiting = list(names)
    while waiting:
        batch = waiting if one_process else waiting[:1]
        finished = 0
        for name, found in _in_child(check, batch, arguments):
            finished = batch.index(name) + 1
            if found is None:
                on_start(name)
            else:
                yield name, found
        waiting = waiting[max(1, finished) :]


def _in_child(check: Callable, names: Sequence[str], arguments: tuple) -> Iterator[tuple[str, Any]]:
    """What one process finds; None at the begin of every name, :class:`ChildDied` where it ends too early."""
    context = process_context(check.__module__)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(there, check, list(names), arguments, dict(os.environ)))
    with process_startup():
        process.start()
    there.close()
    name = names[0]
    try:
        while True:
            if not here.poll(TIMEOUT_SECONDS):
                yield name, ChildDied(f"no answer in {TIMEOUT_SECONDS / 60:.0f} minutes")
                return
            try:
                message = here.recv()
            except EOFError:
                process.join()
                yield name, ChildDied(_exit_reason(process.exitcode))
                return
            if message is None:
                process.join(30)
                return
            name = message[0]
            yield message
    finally:
        process.kill()
        process.join()
        here.close()


def _run(
    connection: Connection, check: Callable, names: list[str], arguments: tuple, environment: dict[str, str]
) -> None:
    replace_environment(environment)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # compilers talk; what is found goes over the connection
        os.dup2(nothing, stream)
    for name in names:
        connection.send((name, None))
        for found in check(name, *arguments):
            connection.send((name, found))
    connection.send(None)


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"
