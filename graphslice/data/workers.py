"""Pool of processes that read SMILES; if one crashes or hangs, only the row that it was reading is lost."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeAlias, TypeVar

from graphslice.errors import InputError
from graphslice.processes import Child, ChildDied

_Result = TypeVar("_Result")
_Work: TypeAlias = Callable[[Sequence[str]], _Result]

# Time limit in seconds for the start of a replacement process, which may have to compile kernels.
_START_SECONDS = 600


class Workers:
    """Pool of worker processes, each controlled by a thread of this process.

    ``seconds`` is the time limit for one SMILES, and for a task of several SMILES before they are retried one by one.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        # Forking is safe on Linux: the child processes use neither torch nor a GPU. Libraries of macOS are not safe.
        self._context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._closed = False
        self._lock = threading.Lock()  # held while processes are replaced or killed
        self._processes = [Child(self._context, interruptible=False) for _ in range(count)]
        self._idle = list(self._processes)
        self._cold = set(self._processes)  # which have not loaded their libraries
        self._threads = ThreadPoolExecutor(count, "graphslice-featurize")

    def submit(self, work: _Work[_Result], smiles: Sequence[str]) -> Future[list[tuple[_Result, str | None]]]:
        """Submit a function of SMILES that treats every row independently.

        The future returns pairs of result and reason: one pair for all rows, or one per row. The reason is None unless
        the row crashed the process or took too long; the result is then that of an empty SMILES.
        """
        return self._threads.submit(self._run, work, smiles)

    def close(self) -> None:
        """Kill the processes, even if they are busy."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: _Work[_Result], smiles: Sequence[str]) -> list[tuple[_Result, str | None]]:
        process = self._idle.pop()
        try:
            if process in self._cold:
                self._cold.remove(process)
                try:
                    _run(process, work, [""], _START_SECONDS)
                except ChildDied:
                    process, _ = self._replace(process, work)
            results: list[tuple[_Result, str | None]] = []
            tasks: list[Sequence[str]] = [smiles]
            for texts in tasks:  # which grows by the rows of a task that is lost
                try:
                    results.append((_run(process, work, texts, self._seconds), None))
                except ChildDied as lost:
                    process, empty = self._replace(process, work)
                    if len(texts) > 1:
                        tasks += [[text] for text in texts]
                        continue
                    reason = (
                        f"took longer than {self._seconds:g} s" if lost.exitcode is None else "crashed on this SMILES"
                    )
                    results.append((empty, f"RDKit {reason}"))
            return results
        finally:
            self._idle.append(process)

    def _replace(self, lost: Child, work: _Work[_Result]) -> tuple[Child, _Result]:
        """Replace a process; return the new one and its result for an empty SMILES, which also loads its libraries."""
        lost.kill()
        process = Child(self._context, interruptible=False)
        with self._lock:
            self._processes[self._processes.index(lost)] = process
            if self._closed:
                process.kill()
                raise CancelledError
        try:
            return process, _run(process, work, [""], _START_SECONDS)
        except ChildDied:
            with self._lock:  # the next task replaces it again
                self._processes[self._processes.index(process)] = lost
            raise InputError(
                "the processes that read SMILES exit right after they start: use --workers 1; in a script, guard the "
                'code with if __name__ == "__main__":'
            ) from None


def _run(process: Child, work: _Work[_Result], smiles: Sequence[str], seconds: float) -> _Result:
    process.start(work, smiles)
    return process.result(seconds)
