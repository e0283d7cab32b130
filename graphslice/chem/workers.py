"""Processes that read SMILES: one that crashes RDKit, or takes longer than the time limit, costs its row only.

RDKit cannot be interrupted, and holds Python's global lock meanwhile. A ring over n others, as in cyclodextrins, is 2^n
rings of one size for it, which take 6 s for n = 19 and four times as long for each two more; it needs minutes, or
crashes, on some dense graphs that are not molecules.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeAlias, TypeVar

from graphslice.errors import InputError
from graphslice.system.processes import Child, ChildDied

#: Time limit in seconds for one SMILES, and for a task of many, whose rows are then tried one by one.
ROW_SECONDS = 5.0
# Time limit in seconds for the start of a process, which may have to compile kernels.
_START_SECONDS = 600
# A SMILES with fewer digits has fewer than 12 ring closures, and therefore at most 2^12 rings. A shorter one takes less
# than a tenth of a second, and less than three seconds with all descriptors. In tables of drugs one in 500 has more.
_MOST_DIGITS, _MOST_CHARACTERS = 23, 512
_DIGIT = re.compile("[0-9]")

_Result = TypeVar("_Result")
_Work: TypeAlias = Callable[[Sequence[str]], _Result]
# The results of a task: one for all rows with None, or one for each row with the reason if it was lost.
_Results: TypeAlias = list[tuple[_Result, str | None]]


def is_intricate(smiles: str) -> bool:
    """True if RDKit may take long for a SMILES, or crash."""
    if not isinstance(smiles, str) or len(smiles) <= _MOST_DIGITS:
        return False
    return len(smiles) > _MOST_CHARACTERS or len(_DIGIT.findall(smiles)) > _MOST_DIGITS


def tasks(smiles: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Divide SMILES into parts of ``size``, in order; an intricate one is a part of its own."""
    start = 0
    for row, text in enumerate(smiles):
        alone = is_intricate(text)
        if start < row and (alone or row - start == size):
            yield smiles[start:row]
            start = row
        if alone:
            yield smiles[row : row + 1]
            start = row + 1
    if start < len(smiles):
        yield smiles[start:]


class Workers:
    """Processes for the tasks of :func:`tasks`: an intricate SMILES is read in a process for these alone, so that
    others need not wait for it; ``count`` processes read the others, with 0 this process."""

    def __init__(self, count: int = 0) -> None:
        self._ordinary = _Processes(count) if count else None
        self._intricate: _Processes | None = None  # started when it is needed
        self._lock = threading.Lock()

    def submit(self, work: _Work[_Result], smiles: Sequence[str]) -> Future[_Results[_Result]]:
        """Submit a function of independent rows; the future returns (result, reason): one for all rows, or one per row.
        The reason is None unless the row crashed or took too long, with the result of an empty SMILES."""
        if len(smiles) == 1 and is_intricate(smiles[0]):
            return self.isolate(work, smiles[0])
        return _Later(work, smiles) if self._ordinary is None else self._ordinary.submit(work, smiles)

    def isolate(self, work: _Work[_Result], text: str) -> Future[_Results[_Result]]:
        """Submit an intricate molecule; a daemon process, which may not start others, reads it itself."""
        if multiprocessing.current_process().daemon:
            return _Later(work, [text])
        with self._lock:  # of several threads of a server
            self._intricate = self._intricate or _Processes(1)
        return self._intricate.submit(work, [text])

    def close(self) -> None:
        """Kill the processes, even if they are busy."""
        for processes in (self._ordinary, self._intricate):
            if processes is not None:
                processes.close()


class _Later(Future, Generic[_Result]):
    """A task that is done when its result is asked for."""

    def __init__(self, work: _Work[_Result], smiles: Sequence[str]) -> None:
        super().__init__()
        self._work, self._smiles = work, smiles

    def result(self, timeout: float | None = None) -> _Results[_Result]:
        """Do the task."""
        return [(self._work(self._smiles), None)]


class _Processes:
    """Some processes, each controlled by a thread."""

    def __init__(self, count: int) -> None:
        # Forking is safe on Linux: the child processes use neither torch nor a GPU. Libraries of macOS are not safe.
        self._context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._closed = False
        self._lock = threading.Lock()  # held while processes are replaced or killed
        self._processes = [Child(self._context, interruptible=False) for _ in range(count)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(count, "graphslice-featurize")

    def submit(self, work: _Work[_Result], smiles: Sequence[str]) -> Future[_Results[_Result]]:
        """As :meth:`Workers.submit`."""
        return self._threads.submit(self._run, work, smiles)

    def close(self) -> None:
        """Kill the processes, even if they are busy."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: _Work[_Result], smiles: Sequence[str]) -> _Results[_Result]:
        process = self._idle.pop()
        try:
            try:  # a new process loads its libraries, and one may have been killed since its last task
                _run(process, work, [""], _START_SECONDS)
            except ChildDied:
                process, _ = self._replace(process, work)
            results: list[tuple[_Result, str | None]] = []
            parts: list[Sequence[str]] = [smiles]
            for texts in parts:  # which grows by the rows of a task that is lost
                try:
                    results.append((_run(process, work, texts, ROW_SECONDS), None))
                except ChildDied as lost:
                    process, empty = self._replace(process, work)
                    if len(texts) > 1:
                        parts += [[text] for text in texts]
                        continue
                    is_late = lost.exitcode is None
                    reason = f"took longer than {ROW_SECONDS:g} s" if is_late else "crashed on this molecule"
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
