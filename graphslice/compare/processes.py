"""Work in processes of its own, which end with the one that began them."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from graphslice.errors import InputError

Key = TypeVar("Key")


def each_in_a_process(
    function: Callable[..., object], tasks: Mapping[Key, tuple[Any, ...]], jobs: int
) -> Generator[tuple[Key, str | None], None, None]:
    """Call a function with each of several arguments, so many at a time.

    If something goes wrong here, Ctrl-C included, what runs is interrupted, and nothing more begins.

    Args:
        function: of a module; interrupted, it raises KeyboardInterrupt.
        tasks: for each key the arguments of a call. All are pickled.
        jobs: calls at a time, each with its share of the cores.

    Yields:
        Each key as its call ends, with the reason if it failed, else None.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    context, waiting = get_context("spawn"), list(tasks.items())
    running: dict[Any, tuple[Key, Any, Connection]] = {}  # by what the system signals the end of a process with
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, arguments = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_call_in_process, args=(function, arguments, sender))
                # An interrupt that comes while a process starts is held back until the process is known here.
                with _openmp_threads(max(1, cores // jobs)), _interrupts_held():
                    process.start()
                    running[process.sentinel] = key, process, receiver
                sender.close()
            for sentinel in wait(list(running)):
                key, process, receiver = running.pop(sentinel)
                process.join()
                try:
                    reason = receiver.recv()
                except EOFError:
                    reason = f"its process ended with {process.exitcode}: was there memory enough?"
                yield key, reason
    except BaseException:
        for _, process, _ in running.values():
            os.kill(process.pid, signal.SIGINT)
        for _, process, _ in running.values():
            process.join()
        raise


def call(function: Callable[..., object], *arguments: Any) -> str | None:
    """Call a function; give None if it returned, else in one line why it did not."""
    try:
        function(*arguments)
    except InputError as error:
        return str(error)
    except Exception as error:  # of code that is being written, or of the machine: the other calls go on
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@contextmanager
def _openmp_threads(count: int) -> Iterator[None]:
    """Processes that start within have so many threads: torch reads it when it is loaded."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C takes effect after; processes that start within hold it too, until they say otherwise."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _call_in_process(function: Callable[..., object], arguments: tuple[Any, ...], sender: Connection) -> None:
    """What a process does: call the function and send how it went, unless it is interrupted."""
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C reaches it through its parent alone, and once
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    try:
        # A shell has what it starts in the background ignore interrupts, which are how a call is stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.send(call(function, *arguments))
    except KeyboardInterrupt:
        pass  # nobody waits for a reason


def _end_with(parent: BaseProcess) -> None:
    """Interrupt this process when its parent has ended, however it did: nobody would stop it otherwise."""
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
