"""Work in processes of its own, which end with the one that began them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any, TypeVar

from graphslice.errors import InputError
from graphslice.hardware import cores

Key = TypeVar("Key")

# Where Linux has the drivers of NVIDIA's and AMD's GPUs, and those of Windows beneath it.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def in_processes(
    function: Callable[..., object], tasks: Mapping[Key, tuple[Any, ...]], jobs: int, gpus: Sequence[str] = ()
) -> Generator[tuple[Key, str | None], None, None]:
    """Call a function with each of several arguments, so many at a time.

    If something goes wrong here, Ctrl-C included, what runs is interrupted, and nothing more begins.

    Args:
        function: of a module; interrupted, it raises KeyboardInterrupt.
        tasks: for each key the arguments of a call. All are pickled.
        jobs: calls at a time, each with its share of the cores.
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them; every call sees one of them alone, that of the fewest calls.

    Yields:
        Each key as its call ends, with the reason if it failed, else None.
    """
    context, waiting = process_context(function.__module__), list(tasks.items())
    # By what the system signals the end of a process with; with the GPU that it sees.
    running: dict[Any, tuple[Key, Any, Connection, str | None]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, arguments = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                gpu = least_used_gpu(gpus, [entry[-1] for entry in running.values()])
                share = _child_environment(cores() // jobs, gpu)
                given = function, arguments, sender, {**os.environ, **share}
                process = context.Process(target=_run_and_report, args=given)
                # An interrupt that comes while a process starts is held back until the process is known here.
                with process_startup(share):
                    process.start()
                    running[process.sentinel] = key, process, receiver, gpu
                sender.close()
            # An interrupt that comes just before a wait is seen after it, so none may be long.
            for sentinel in wait(list(running), timeout=0.5):
                key, process, receiver, _ = running.pop(sentinel)
                process.join()
                try:
                    reason = receiver.recv()
                except EOFError:
                    reason = f"its process ended with {process.exitcode}: was there memory enough?"
                yield key, reason
    except BaseException:
        for _, process, *_ in running.values():
            with suppress(ProcessLookupError):  # one that has ended by itself meanwhile
                os.kill(process.pid, signal.SIGINT)
        for _, process, *_ in running.values():
            process.join()
        raise


def process_context(module: str) -> Any:
    """A context of processes that begin with a module, which is imported once for all of them.

    On Linux a process that has imported it, and has done nothing else, divides itself for each: that takes some
    milliseconds, and an import of torch and Lightning seconds. Elsewhere each imports it by itself, as where there
    is a GPU: the import looks for one, and a process that has done so cannot be divided.
    """
    # A socket's path has 108 letters, of which some 40 are not the folder's.
    plain = sys.platform == "linux" and len(tempfile.gettempdir()) < 60
    if not plain or any(os.path.exists(driver) for driver in _DRIVERS):
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


@contextmanager
def process_startup(share: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """While a process of :func:`process_context` starts: it imports from where this one does, and Ctrl-C has to wait.

    Args:
        share: variables that it shall have.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    with _environment({**share, "PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}), _interrupts_blocked():
        yield


def error_of_call(function: Callable[..., object], *arguments: Any) -> str | None:
    """Call a function; give None if it returned, else in one line why it did not."""
    try:
        function(*arguments)
    except InputError as error:
        return str(error)
    except Exception as error:  # of code that is being written, or of the machine: the other calls go on
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def least_used_gpu(gpus: Sequence[str], taken: Sequence[str | None]) -> str | None:
    """The GPU that the fewest processes see, the first of several; None of none.

    Args:
        gpus: their names.
        taken: for every process the name of its GPU.
    """
    counts = Counter(taken)
    return min(gpus, key=lambda gpu: counts[gpu], default=None)


def _child_environment(cores: int, gpu: str | None) -> dict[str, str]:
    """What a process may use of the machine, as libraries read it when they are loaded."""
    return {"OMP_NUM_THREADS": str(max(1, cores))} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Processes that start within have these variables."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C takes effect after; processes that start within hold it too, until they say otherwise."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _run_and_report(
    function: Callable[..., object], arguments: tuple[Any, ...], sender: Connection, environment: dict[str, str]
) -> None:
    """What a process does: call the function and send how it went, unless it is interrupted."""
    replace_environment(environment)
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C reaches it through its parent alone, and once
    try:
        threading.Thread(target=_exit_with_parent, args=(parent_process(),), daemon=True).start()
        # A shell has what it starts in the background ignore interrupts, which are how a call is stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.send(error_of_call(function, *arguments))
    except KeyboardInterrupt:
        pass  # nobody waits for a reason


def replace_environment(environment: Mapping[str, str]) -> None:
    """Let this process have these variables and no others, and torch as many threads as they say.

    One that was divided off has those of its origin, and a torch that was loaded with them.
    """
    os.environ.clear()
    os.environ.update(environment)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or cores()))


def _exit_with_parent(parent: BaseProcess) -> None:
    """Interrupt this process when its parent has ended, however it did: nobody would stop it otherwise."""
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
