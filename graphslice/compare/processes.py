"""Runs in processes of their own, which end with the one that began them."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console

from graphslice.checkpoint import CONFIG
from graphslice.config import RunConfig
from graphslice.errors import InputError


@contextmanager
def _threads(count: int):
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


def each_in_a_process(tasks: dict[Path, dict], jobs: int) -> Iterator[tuple[Path, str | None]]:
    """Train configurations, so many at a time, into their folders; those that are begun there are continued.

    If something goes wrong here, Ctrl-C included, those that run are stopped, and none begins.

    Args:
        tasks: for each folder what :meth:`RunConfig.to_dict` gives.
        jobs: runs at a time, each with its share of the cores.

    Yields:
        Each folder as its run ends, with the reason if it failed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    context, waiting = get_context("spawn"), list(tasks.items())
    running: dict[int, tuple[Path, BaseProcess, Connection]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                folder, config = waiting.pop(0)
                said, saying = context.Pipe(duplex=False)
                process = context.Process(target=run_one, args=(config, str(folder), saying))
                # An interrupt that comes while a process starts is kept for when it can be heard.
                with _threads(max(1, cores // jobs)), _interrupts_held():
                    process.start()
                    running[process.sentinel] = folder, process, said
                saying.close()
            for sentinel in wait(list(running)):
                folder, process, said = running.pop(sentinel)
                process.join()
                try:
                    reason = said.recv()
                except EOFError:
                    reason = f"its process ended with {process.exitcode}: was there memory enough?"
                yield folder, reason
    except BaseException:
        for _, process, _ in running.values():
            os.kill(process.pid, signal.SIGINT)
        for _, process, _ in running.values():
            process.join()
        raise


@contextmanager
def _interrupts_held():
    """Ctrl-C takes effect after; processes that start within hold it too, until they say otherwise."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def run_one(config: dict, folder: str, saying: Connection) -> None:
    """Train, or continue, one run; says the reason where that is not possible, else None."""
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C reaches it through its parent alone, and once
    threading.Thread(target=_follow, args=(parent_process(),), daemon=True).start()
    try:
        # A shell has what it starts in the background ignore interrupts, which are how a run is stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        saying.send(_trained(config, folder))
    except KeyboardInterrupt:
        pass  # what was done lies in the folder


def _follow(parent: BaseProcess) -> None:
    """End with the parent, whatever ended it: the run would go on beside the one that continues it."""
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)


def _trained(config: dict, folder: str) -> str | None:
    from graphslice.training.run import Interrupted, resume, train

    quiet = Console(quiet=True)
    try:
        if (Path(folder) / CONFIG).exists():
            resume(folder, console=quiet)
        else:
            train(RunConfig.from_dict(config), folder, console=quiet)
    except InputError as error:
        return str(error)
    except Interrupted:
        raise KeyboardInterrupt from None
    except Exception as error:  # of a mixer that is being written, or of the machine: the other runs go on
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
