"""Work for as many threads as torch may use: a compiled kernel on all of them, or a task on each."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Below this many values a second thread costs more than it saves.
_MIN_VALUES = 1 << 17


class _Thread(threading.local):
    cores: int | None = None


_thread = _Thread()


def cores() -> int:
    """How many cores compiled kernels may use: as many as torch, or as it had before :func:`single_threaded_torch`."""
    return _thread.cores or torch.get_num_threads()


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Let torch's own operations in this thread run on one core, and leave the others to compiled kernels.

    Torch's threads stay awake for a while when they have ended an operation, in case there is another one; the
    cores are busy for so long. What is left to torch where the blocks are a program is too little for several.
    """
    before, _thread.cores = (torch.get_num_threads(), _thread.cores), cores()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        threads, _thread.cores = before
        torch.set_num_threads(threads)


def parallel_for(kernel: Callable[[int, int], None], count: int, values: int) -> None:
    """Call ``kernel(begin, end)`` on chunks of ``range(count)``, in parallel where there is much to do.

    Args:
        kernel: compiled with ``nogil``; works on samples or rows ``begin`` to ``end``.
        count: how many samples or rows there are.
        values: how many numbers they hold together.
    """
    threads = min(cores(), count, values // _MIN_VALUES)
    if threads < 2:
        kernel(0, count)
        return
    ends = [count * chunk // threads for chunk in range(threads + 1)]
    futures = [thread_pool(threads - 1).submit(kernel, *ends[chunk : chunk + 2]) for chunk in range(1, threads)]
    kernel(*ends[:2])
    for future in futures:
        future.result()


@lru_cache
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """The threads that run compiled kernels, made once per process."""
    return ThreadPoolExecutor(threads, "graphslice-ops")


def map_one_core_each(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """``[function(item) for item in items]``, several at a time, each on one core.

    The matrices of a batch of molecules are small: cores that share one wait for each other most
    of the time. Grad mode, autocast and random numbers are a thread's own, so ``function`` sets them.
    """
    threads = cores()
    if threads == 1:
        return [function(item) for item in items]
    return list(_single_cores(threads).map(function, items))


@lru_cache
def _single_cores(threads: int) -> ThreadPoolExecutor:
    # The setting holds for the thread that makes it, and for threads that begin later; setting it
    # back for those would give these the other cores again.
    return ThreadPoolExecutor(threads, "graphslice-cores", initializer=torch.set_num_threads, initargs=(1,))


def _renew_after_fork() -> None:
    """Make a forked process able to compute.

    It has the thread pools of its parent without their threads, ours and OpenMP's: work given to them never ends.
    Ours are made anew when needed. Those of OpenMP cannot be, so torch computes on one core.
    """
    thread_pool.cache_clear()
    _single_cores.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
