"""Function calls in child processes, which end when their parent ends.

:class:`Worker` is a process that runs one call after the other; a crash or a time limit costs one call.
:func:`in_processes` runs long calls in parallel, each in a process of its own, and stops them in an orderly way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
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
Result = TypeVar("Result")

# Driver devices of NVIDIA and AMD GPUs on Linux, and of GPUs in the Windows Subsystem for Linux.
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def in_processes(
    function: Callable[..., object], tasks: Mapping[Key, tuple[Any, ...]], jobs: int, gpus: Sequence[str] = ()
) -> Generator[tuple[Key, str | None], None, None]:
    """Call a function with each of several arguments, each call in a process of its own.

    If this generator is closed or raises, Ctrl-C included, the running calls are interrupted and no further ones start.

    Args:
        function: a function of a module; when interrupted, it raises KeyboardInterrupt.
        tasks: the arguments of a call for each key. All are pickled.
        jobs: maximal number of parallel calls, among which the cores are divided.
        gpus: names as in ``CUDA_VISIBLE_DEVICES``; every call sees only one, that with the fewest running calls.

    Yields:
        Each key when its call ends, with the error message if it failed, else None.
    """
    context, waiting = process_context(function.__module__), list(tasks.items())
    # Sentinel of the process -> key, process, receiver and GPU.
    running: dict[Any, tuple[Key, Any, Connection, str | None]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, arguments = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                gpu = least_used_gpu(gpus, [entry[-1] for entry in running.values()])
                share = _child_environment(cores() // jobs, gpu)
                process_args = function, arguments, sender, {**os.environ, **share}
                process = context.Process(target=_run_and_report, args=process_args)
                # An interrupt during the start is delayed until the process is in `running`, so that it is stopped too.
                with process_startup(share):
                    process.start()
                    running[process.sentinel] = key, process, receiver, gpu
                sender.close()
            # The wait is short, since an interrupt just before it is only handled after it.
            for sentinel in wait(list(running), timeout=0.5):
                key, process, receiver, _ = running.pop(sentinel)
                process.join()
                try:
                    reason = receiver.recv()
                except EOFError:
                    reason = f"its process ended with exit code {process.exitcode}: it may have run out of memory"
                yield key, reason
    except BaseException:
        for _, process, *_ in running.values():
            with suppress(ProcessLookupError):  # it has ended in the meantime
                os.kill(process.pid, signal.SIGINT)
        for _, process, *_ in running.values():
            process.join()
        raise


class WorkerLostError(Exception):
    """The process of a :class:`Worker` ended or took too long; the message is a clause.

    Args:
        exitcode: exit code of the process; None if it took too long.
        seconds: time limit of the call.
    """

    def __init__(self, exitcode: int | None, seconds: float) -> None:
        self.exitcode = exitcode
        if exitcode is None:
            limit = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:g} s"
            super().__init__(f"no result within {limit}")
        elif exitcode < 0:
            super().__init__(f"the process was killed by {signal.Signals(-exitcode).name}")
        else:
            super().__init__(f"the process exited with code {exitcode}")


class Worker:
    """A child process that calls functions, one after the other. Ctrl-C reaches it only through its parent.

    Args:
        context: multiprocessing context that starts it.
        silent: discard what it writes to stdout and stderr.
        daemon: as in multiprocessing: it may not have child processes, and does not outlive an exit of its parent.
    """

    # Held while a process starts: a process forked meanwhile would inherit the pipe and keep it open.
    _starting = threading.Lock()

    def __init__(self, context: Any, *, silent: bool = False, daemon: bool = True) -> None:
        with self._starting:
            self._pipe, child_pipe = context.Pipe()
            # A process that is forked from a server has the environment of the server.
            environment = None if context.get_start_method() == "fork" else dict(os.environ)
            arguments = child_pipe, silent, environment
            self._process = context.Process(target=_serve, args=arguments, daemon=daemon)
            self._process.start()
            child_pipe.close()

    def call(self, function: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
        """Call a function of a module in the process and return its result.

        Args:
            function: the function; it is pickled by name.
            arguments: its arguments, which are pickled.
            seconds: time limit.

        Raises:
            WorkerLostError: if the process ended or took too long; it must then be killed and replaced.
            Exception: what the function raises.
        """
        (result,) = self.stream(function, *arguments, seconds=seconds)
        return result

    def stream(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Iterator[Any]:
        """Yield the results of a generator function as they come; as for :meth:`call`, within ``seconds`` each."""
        with suppress(OSError):  # of a process that has ended, which is detected below
            self._pipe.send((function, arguments))
        while True:
            try:
                if not self._pipe.poll(seconds):
                    raise WorkerLostError(None, seconds)
                result, error, more = self._pipe.recv()
            except (EOFError, OSError):
                self._process.join()
                raise WorkerLostError(self._process.exitcode or 0, seconds) from None
            if error is not None:
                raise error
            if more is not False:
                yield result
            if not more:
                return

    def kill(self) -> None:
        """End the process, even if it is busy."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, silent: bool, environment: dict[str, str] | None) -> None:
    """Run calls from the pipe until the parent closes it: the main function of a :class:`Worker`.

    A reply is a result, an exception, and whether more results follow: None after a single result, False at the end
    of a generator, which has no result of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is sent to all processes; the parent kills this one
    if environment is not None:
        replace_environment(environment)
    threading.Thread(target=_exit_without_parent, args=(os.getppid(),), daemon=True).start()
    if silent:
        devnull = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(devnull, stream)
    with suppress(EOFError, OSError):
        while True:
            function, arguments = pipe.recv()
            try:
                result = function(*arguments)
                if isinstance(result, Generator):
                    for one in result:
                        pipe.send((one, None, True))
                    pipe.send((None, None, False))
                else:
                    pipe.send((result, None, None))
            except Exception as error:
                pipe.send((None, error, None))


def _exit_without_parent(parent: int) -> None:
    """Exit this process when its parent is gone, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def process_context(module: str) -> Any:
    """Return a multiprocessing context whose processes import a module.

    On Linux a server process imports the module once and is forked for every call, which takes milliseconds, while
    importing torch and Lightning takes seconds. On other systems, and on machines with a GPU, every process imports
    it: the import initialises the GPU, and a process that has done so cannot be forked.

    Args:
        module: name of the module.
    """
    # The path of a Unix socket has at most 108 characters, about 40 of which follow the temporary directory.
    can_fork = sys.platform == "linux" and len(tempfile.gettempdir()) < 60
    if not can_fork or any(os.path.exists(driver) for driver in _DRIVERS):
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


@contextmanager
def process_startup(share: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Context manager in which to start a process of :func:`process_context`.

    The process imports from the same paths as this one. Ctrl-C takes effect after the block.

    Args:
        share: additional environment variables of the process.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    with _environment({**share, "PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}), _interrupts_blocked():
        yield


def error_of_call(function: Callable[..., object], *arguments: Any) -> str | None:
    """Call a function; return None if it succeeds, else the first line of the error message."""
    try:
        function(*arguments)
    except InputError as error:
        return str(error)
    except Exception as error:  # any other error is reported as well, so that the other calls continue
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def least_used_gpu(gpus: Sequence[str], taken: Sequence[str | None]) -> str | None:
    """Return the GPU that the fewest processes use, the first of equals; None if there is no GPU.

    Args:
        gpus: names of the GPUs.
        taken: name of the GPU of every process.
    """
    counts = Counter(taken)
    return min(gpus, key=lambda gpu: counts[gpu], default=None)


def _child_environment(cores: int, gpu: str | None) -> dict[str, str]:
    """Return the environment variables that limit the threads and GPUs of a process."""
    return {"OMP_NUM_THREADS": str(max(1, cores))} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Context manager that sets environment variables, for processes started inside it."""
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
    """Context manager that blocks SIGINT; processes started inside it inherit the block until they remove it."""
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
    """Call the function in a child process and send its error message or None, unless it is interrupted."""
    replace_environment(environment)
    if hasattr(os, "setsid"):
        os.setsid()  # so that Ctrl-C reaches it only through its parent, and only once
    try:
        threading.Thread(target=_exit_with_parent, args=(parent_process(),), daemon=True).start()
        # A process that a shell started in the background ignores interrupts, by which calls are stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.send(error_of_call(function, *arguments))
    except KeyboardInterrupt:
        pass  # the parent no longer reads the result


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace all environment variables of this process, and set the number of threads of torch accordingly.

    A forked process inherits the variables of the server process, and a torch that was loaded with them.
    """
    os.environ.clear()
    os.environ.update(environment)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or cores()))


def _exit_with_parent(parent: BaseProcess) -> None:
    """Interrupt this process when its parent ends for any reason, since nothing else would stop it."""
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
