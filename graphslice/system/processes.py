"""Function calls in child processes, which end when their parent ends; a crash or a timeout is a result."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from graphslice.errors import InputError
from graphslice.system.machine import cores, has_gpu_driver

Key = TypeVar("Key")

# Seconds between two reports of a call.
_REPORT_SECONDS = 0.5

# Held while a process starts: a process forked meanwhile would inherit the pipe and keep it open.
_starting = threading.Lock()


def is_first_process() -> bool:
    """True in the first process of a distributed run, and in an ordinary process."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "RANK", "NODE_RANK", "SLURM_PROCID"))


class Reported(NamedTuple):
    """What a call reports before its result."""

    values: tuple[Any, ...]


# In a child process, its end of the pipe.
_to_parent: Connection | None = None
_last_report = 0.0


def report_to_parent(*values: Any) -> None:
    """Report values to the process that runs this call by :func:`in_processes`, at most twice a second."""
    global _last_report
    if _to_parent is not None and time.monotonic() - _last_report >= _REPORT_SECONDS:
        _last_report = time.monotonic()
        with suppress(OSError):  # the parent has ended, and this process soon does
            _to_parent.send(Reported(values))


def in_processes(
    function: Callable[..., object],
    tasks: Mapping[Key, tuple[Any, ...]],
    jobs: int,
    gpus: Sequence[str] = (),
    on_report: Callable[[Key, tuple[Any, ...]], object] = lambda key, values: None,
) -> Generator[tuple[Key, str | None], None, None]:
    """Call a function with each of several arguments, in processes of their own, at most ``jobs`` in parallel.
    ``on_report`` is called with what a call gives to :func:`report_to_parent`.

    Yields each key when its call ends, with the error message if it failed, else None. The calls share the cores, and
    each sees one of the ``gpus``, named as in ``CUDA_VISIBLE_DEVICES``. If this generator is closed or raises, Ctrl-C
    included, the running calls are interrupted, and no further ones start.
    """
    context, waiting = process_context(function.__module__), list(tasks.items())
    running: dict[Any, tuple[Key, Child, str | None]] = {}  # by pipe: key, process and GPU
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, arguments = waiting.pop(0)
                taken = [used for *_, used in running.values()]
                gpu = min(gpus, key=taken.count, default=None)
                share = {"OMP_NUM_THREADS": str(max(1, cores() // jobs))}
                if gpu is not None:
                    share["CUDA_VISIBLE_DEVICES"] = gpu
                child = Child(context, share)
                running[child.pipe] = key, child, gpu
                child.start(error_of_call, function, *arguments)
            # The wait is short, since an interrupt just before it is only handled after it.
            for pipe in wait(list(running), timeout=0.5):
                key, child, _ = running[pipe]
                try:
                    reason = child.result()
                    if isinstance(reason, Reported):
                        on_report(key, reason.values)
                        continue
                    child.end()
                except ChildDied as died:
                    reason = str(died)
                del running[pipe]
                yield key, reason
    except BaseException:
        for _, child, _ in running.values():
            child.interrupt()
        for _, child, _ in running.values():
            child.end()
        raise


class ChildDied(Exception):
    """A child process ended with ``exitcode``, negative for a signal, or took too long: then it is None."""

    def __init__(self, exitcode: int | None) -> None:
        reason = "it may have run out of memory"
        if exitcode is not None and exitcode > 0:
            reason = 'a script that trains several models needs if __name__ == "__main__"'
        super().__init__(f"its process ended with exit code {exitcode}: {reason}")
        self.exitcode = exitcode


class Child:
    """Child process that runs calls, one at a time, and ends when this process ends.

    It has additional environment variables (``share``; none with the start method ``fork``). If ``interruptible``, it
    handles interrupts, may start processes, and is out of reach of Ctrl-C in the terminal; else it ignores interrupts
    and may be busy in code that does not return. ``pipe`` can be read when a result is there or the process has ended.
    """

    def __init__(
        self, context: Any, share: Mapping[str, str] = MappingProxyType({}), interruptible: bool = True
    ) -> None:
        environment = None if context.get_start_method() == "fork" else {**os.environ, **share}
        with _starting, _interrupts_blocked():
            self.pipe, child_pipe = context.Pipe()
            process_args = child_pipe, environment, interruptible
            self._process = context.Process(target=_serve, args=process_args, daemon=not interruptible)
            self._process.start()
            child_pipe.close()

    def start(self, function: Callable[..., object], *arguments: Any) -> None:
        """Start a call of a function of a module; function and arguments are pickled."""
        with suppress(OSError):  # the process has ended, which `result` reports
            self.pipe.send((function, arguments))

    def result(self, seconds: float | None = None) -> Any:
        """Wait for the call's result or what it has :class:`Reported`, or raise its exception; :class:`ChildDied` if
        the process ended or timed out."""
        try:
            if not self.pipe.poll(seconds):
                raise ChildDied(None)
            message = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise ChildDied(self._process.exitcode) from None
        if isinstance(message, Reported):
            return message
        result, error = message
        if error is not None:
            raise error
        return result

    def interrupt(self) -> None:
        """Interrupt the call as Ctrl-C does."""
        with suppress(OSError):  # it has ended in the meantime
            os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> None:
        """Wait until the process ends, after its call if one is running."""
        self.pipe.close()
        self._process.join()

    def kill(self) -> None:
        """Kill the process, even if it is busy."""
        self._process.kill()
        self._process.join()


def process_context(module: str) -> Any:
    """Return a multiprocessing context whose processes import a module. On Linux without a GPU, a server imports it
    once and is forked for every call; a process that has initialised a GPU cannot be forked."""
    if sys.platform != "linux" or has_gpu_driver():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def error_of_call(function: Callable[..., object], *arguments: Any) -> str | None:
    """Call a function; return None, or the first line of the error message if it fails."""
    try:
        function(*arguments)
    except InputError as error:
        return str(error)
    except Exception as error:  # any other error is reported as well, so that the other calls continue
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Context manager that blocks SIGINT in this process, and in those started inside it until they unblock it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, environment: Mapping[str, str] | None, interruptible: bool) -> None:
    """Run the calls that come through the pipe until it is closed: the main function of a child process."""
    global _to_parent
    _to_parent = pipe
    if environment is not None:
        os.environ.clear()  # a forked process has the variables and the torch of the server process
        os.environ.update(environment)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or cores()))
    if interruptible and hasattr(os, "setsid"):
        os.setsid()  # so that Ctrl-C reaches it only through its parent, and only once
    try:
        threading.Thread(target=_exit_with_parent, args=(interruptible,), daemon=True).start()
        # A process that a shell started in the background ignores interrupts, by which calls are stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler if interruptible else signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with suppress(EOFError, OSError):
            while True:
                function, arguments = pipe.recv()
                result: tuple[object, Exception | None]
                try:
                    result = function(*arguments), None
                except Exception as error:
                    result = None, error
                pipe.send(result)
    except KeyboardInterrupt:
        pass  # the parent no longer reads the result


def _exit_with_parent(interruptible: bool) -> None:
    """End this process when its parent ends for any reason, since nothing else would stop it."""
    parent, number = parent_process(), os.getppid()
    assert parent is not None
    # The number too: a process that was forked later holds the other end of the sentinel open.
    while not wait([parent.sentinel], timeout=1) and os.getppid() == number:
        pass
    if not interruptible:
        os._exit(1)
    os.kill(os.getpid(), signal.SIGINT)
