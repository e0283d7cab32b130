"""Pool of processes that read SMILES; if one crashes or hangs, only the row that it was reading is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

from graphslice.errors import InputError

_Result = TypeVar("_Result")
_Work: TypeAlias = Callable[[Sequence[str]], _Result]

#: Time limit in seconds for one SMILES, and for a task of several SMILES before they are retried one by one.
ROW_SECONDS = 60
# Time limit in seconds for the start of a replacement process, which may have to compile kernels.
_START_SECONDS = 600

# Held while a process starts: a process forked meanwhile would inherit the pipe and keep it open.
_starting = threading.Lock()


class Workers:
    """Pool of worker processes, each controlled by a thread of this process.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        # Forking is safe: the child processes use neither torch nor a GPU.
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        self._context = multiprocessing.get_context(method)
        self._closed = False
        self._processes = [_Process(self._context) for _ in range(count)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(count, "graphslice-featurize")

    def submit(self, work: _Work[_Result], smiles: Sequence[str]) -> Future[list[tuple[_Result, str | None]]]:
        """Submit a task.

        Args:
            work: function of SMILES that treats every row independently; it is pickled.
            smiles: SMILES of the rows.

        Returns:
            A future of pairs of result and reason: one pair for all rows, or one per row. The reason is None unless the
            row crashed the process or took too long; the result is then that of an empty SMILES.
        """
        return self._threads.submit(self._run, work, smiles)

    def close(self) -> None:
        """Kill the processes, even if they are busy."""
        with _starting:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: _Work[_Result], smiles: Sequence[str]) -> list[tuple[_Result, str | None]]:
        process = self._idle.pop()
        try:
            try:
                return [(process.run(work, smiles), None)]
            except _LostError:
                process, empty = self._replace(process, work)
            results: list[tuple[_Result, str | None]] = []
            for text in smiles:
                try:
                    results.append((process.run(work, [text]), None))
                except _LostError as lost:
                    process, empty = self._replace(process, work)
                    results.append((empty, str(lost)))
            return results
        finally:
            self._idle.append(process)

    def _replace(self, lost: _Process, work: _Work[_Result]) -> tuple[_Process, _Result]:
        """Replace a process; return the new one and its result for an empty SMILES, which also loads its libraries."""
        lost.kill()
        process = _Process(self._context)
        with _starting:
            self._processes[self._processes.index(lost)] = process
            if self._closed:
                process.kill()
                raise CancelledError
        try:
            return process, process.run(work, [""], _START_SECONDS)
        except _LostError:
            raise InputError(
                "the processes that read SMILES exit right after they start: use --workers 1; in a script, guard the "
                'code with if __name__ == "__main__":'
            ) from None


class _LostError(Exception):
    """A process was lost; the message is the reason."""


class _Process:
    def __init__(self, context: Any) -> None:
        with _starting:
            self._pipe, child_pipe = context.Pipe()
            self._process = context.Process(target=_serve, args=(child_pipe, os.getpid()), daemon=True)
            self._process.start()
            child_pipe.close()

    def run(self, work: _Work[_Result], smiles: Sequence[str], seconds: float | None = None) -> _Result:
        """Run a task and return its result; raises :class:`_LostError` if the process has died or takes too long."""
        seconds = ROW_SECONDS if seconds is None else seconds
        with suppress(OSError):  # of a process that has died, which is detected below
            self._pipe.send((work, smiles))
        try:
            if not self._pipe.poll(seconds):
                raise _LostError(f"RDKit took longer than {seconds} s")
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            raise _LostError("RDKit crashed on this SMILES") from None
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, parent: int) -> None:
    """Run tasks from the pipe until the parent closes it: the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is sent to all processes; the parent kills this one
    _exit_with_parent(parent)
    with suppress(EOFError, OSError):
        while True:
            work, smiles = pipe.recv()
            result: tuple[Any, Exception | None]
            try:
                result = work(smiles), None
            except Exception as error:
                result = None, error
            pipe.send(result)


def _exit_with_parent(parent: int) -> None:
    """Exit this process when its parent is gone, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
