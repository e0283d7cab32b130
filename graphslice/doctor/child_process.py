"""Checks in child processes, so that a crash or a hang is reported as a result."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from graphslice.processes import process_context, process_startup, replace_environment

#: Maximum time between two results of a check, in seconds.
TIMEOUT_SECONDS = 900.0


class ChildDied(Exception):
    """The process of a check crashed, exited or timed out before the check was complete."""


def run_in_child(
    check: Callable[..., Iterator[Any]],
    names: Sequence[str],
    arguments: tuple,
    *,
    one_process: bool,
    on_start: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[str, Any]]:
    """Run ``check(name, *arguments)`` for every name in child processes.

    Args:
        check: a generator function at the top level of a module, so that it can be imported; it yields results.
        names: names of the checks to run.
        arguments: further arguments, which must be picklable.
        one_process: use one process for all names, and a new one only after a crash; else one process per name.
        on_start: called with each name before its check.

    Yields:
        Pairs of a name and a result, or :class:`ChildDied` if the process ended early.
    """
    pending = list(names)
    while pending:
        batch = pending if one_process else pending[:1]
        finished = 0
        for name, result in _run_child(check, batch, arguments):
            finished = batch.index(name) + 1
            if result is None:
                on_start(name)
            else:
                yield name, result
        pending = pending[max(1, finished) :]


def _run_child(check: Callable, names: Sequence[str], arguments: tuple) -> Iterator[tuple[str, Any]]:
    """Yield the results of one process: None at the start of a name, :class:`ChildDied` if it ends too early."""
    context = process_context(check.__module__)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_checks, args=(sender, check, list(names), arguments, dict(os.environ)))
    with process_startup():
        process.start()
    sender.close()
    name = names[0]
    try:
        while True:
            if not receiver.poll(TIMEOUT_SECONDS):
                yield name, ChildDied(f"no result within {TIMEOUT_SECONDS / 60:.0f} minutes")
                return
            try:
                message = receiver.recv()
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
        receiver.close()


def _run_checks(
    connection: Connection, check: Callable, names: list[str], arguments: tuple, environment: dict[str, str]
) -> None:
    replace_environment(environment)
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # discard the output of compilers; results use the connection
        os.dup2(devnull, stream)
    for name in names:
        connection.send((name, None))
        for result in check(name, *arguments):
            connection.send((name, result))
    connection.send(None)


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process exited with code {code}"
