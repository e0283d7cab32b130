"""Processes that work on SMILES: one that crashes, or does not end, costs the row that it was reading and no other."""

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
_Comparison: TypeAlias = Callable[[Sequence[str]], _Result]

#: The seconds that one SMILES may take; some that are given together may take as long before they are read singly.
ROW_SECONDS = 60
# Those in which a process that takes the place of another has to begin: kernels may have to be compiled.
_START_SECONDS = 600

# Held while a process starts: another one that starts meanwhile would keep the pipe of the first open.
_starting = threading.Lock()


class Workers:
    """Processes, each of which a thread of this process gives work and waits for.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        # Forked where that exists: the children touch neither torch nor a GPU.
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        self._context = multiprocessing.get_context(method)
        self._closed = False
        self._processes = [_Process(self._context) for _ in range(count)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(count, "graphslice-featurize")

    def submit(self, work: _Comparison[_Result], smiles: Sequence[str]) -> Future[list[tuple[_Result, str | None]]]:
        """Begin work on some SMILES.

        Args:
            work: of rows that do not depend on each other; pickled.
            smiles: of the rows.

        Returns:
            The future results of consecutive rows, of all of them together or of one each. One comes with a reason if
            its row has crashed the process or taken too long; it is then the result of an empty SMILES.
        """
        return self._threads.submit(self._run, work, smiles)

    def close(self) -> None:
        """End the processes, whatever they do."""
        with _starting:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: _Comparison[_Result], smiles: Sequence[str]) -> list[tuple[_Result, str | None]]:
        process = self._idle.pop()
        try:
            try:
                return [(process.ask(work, smiles), None)]
            except _LostError:
                process, empty = self._replace(process, work)
            results: list[tuple[_Result, str | None]] = []
            for text in smiles:
                try:
                    results.append((process.ask(work, [text]), None))
                except _LostError as lost:
                    process, empty = self._replace(process, work)
                    results.append((empty, str(lost)))
            return results
        finally:
            self._idle.append(process)

    def _replace(self, lost: _Process, work: _Comparison[_Result]) -> tuple[_Process, _Result]:
        """Another process in place of one, and the result of an empty SMILES, for which it has loaded what it needs."""
        lost.kill()
        process = _Process(self._context)
        with _starting:
            self._processes[self._processes.index(lost)] = process
            if self._closed:
                process.kill()
                raise CancelledError
        try:
            return process, process.ask(work, [""], _START_SECONDS)
        except _LostError:
            raise InputError(
                "the processes that read SMILES end as soon as they begin: give --workers 1, or in a script put what "
                'it does under if __name__ == "__main__":'
            ) from None


class _LostError(Exception):
    """Why a process gave no result."""


class _Process:
    def __init__(self, context: Any) -> None:
        with _starting:
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other, os.getpid()), daemon=True)
            self._process.start()
            other.close()

    def ask(self, work: _Comparison[_Result], smiles: Sequence[str], seconds: float | None = None) -> _Result:
        """The result of some work; raises :class:`_LostError` if the process has ended or takes too long."""
        seconds = ROW_SECONDS if seconds is None else seconds
        with suppress(OSError):  # of one that has ended, which is seen below
            self._pipe.send((work, smiles))
        try:
            if not self._pipe.poll(seconds):
                raise _LostError(f"RDKit took longer than {seconds} s")
            result, error = self._pipe.recv()
        except (EOFError, OSError):
            raise _LostError("RDKit crashed on it") from None
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, parent: int) -> None:
    """What a process does, until its parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it too; the parent ends it
    _exit_with_parent(parent)
    with suppress(EOFError, OSError):
        while True:
            work, smiles = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(smiles), None
            except Exception as error:
                answer = None, error
            pipe.send(answer)


def _exit_with_parent(parent: int) -> None:
    """Let this process end when its parent is gone, however that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
