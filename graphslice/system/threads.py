"""Thread pools for compiled kernels and for tasks of one core each, which need no torch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from graphslice.system import machine

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# With fewer values per thread, starting another thread costs more than it saves.
_MIN_VALUES = 1 << 17


class _Thread(threading.local):
    cores: int | None = None


_thread = _Thread()


def cores() -> int:
    """Return the cores for kernels of this thread: 1 in a task of :func:`map_one_core_each`, else as many as torch uses
    outside of :func:`single_threaded_torch`, or would use."""
    if _thread.cores is not None:
        return _thread.cores
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "get_num_threads"):  # not half imported
        return torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) > 0 else machine.cores()


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Context manager that runs torch's operations of this thread on one core; compiled kernels keep all cores, which
    torch's threads would keep busy for a while after each operation."""
    import torch

    before, _thread.cores = (torch.get_num_threads(), _thread.cores), cores()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        threads, _thread.cores = before
        torch.set_num_threads(threads)


def parallel_for(kernel: Callable[[int, int], None], count: int, values: int) -> None:
    """Call a kernel, compiled with ``nogil``, on chunks ``(begin, end)`` of ``range(count)``, in parallel if there are
    enough ``values`` in total."""
    threads = max(1, min(cores(), count, values // _MIN_VALUES))
    call_in_parallel(kernel, list(pairwise(count * chunk // threads for chunk in range(threads + 1))))


def call_in_parallel(function: Callable[..., None], calls: Sequence[tuple]) -> None:
    """Call a function on each of several tuples of arguments, the first one in this thread."""
    futures = [_thread_pool(len(calls) - 1).submit(function, *arguments) for arguments in calls[1:]]
    function(*calls[0])
    for future in futures:
        future.result()


@lru_cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    """The threads that run compiled kernels, made once per process."""
    return ThreadPoolExecutor(threads, "graphslice-kernels")


def map_one_core_each(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    done: Callable[[_Item], object] = lambda item: None,  # called in this thread, in the order of the items
) -> list[_Result]:
    """Compute ``[function(item) for item in items]`` in parallel, each item on one core; a single item on all cores.
    Grad mode, autocast and random generators are those of another thread."""
    threads, results = cores(), []
    if threads == 1 or len(items) == 1:
        computed: Iterator[_Result] = map(function, items)
    else:
        computed = _single_cores(threads).map(lambda item: _on_one_core(function, item), items)
    for item, result in zip(items, computed, strict=True):
        results.append(result)
        done(item)
    return results


@lru_cache
def _single_cores(threads: int) -> ThreadPoolExecutor:
    # torch.set_num_threads applies to the calling thread and to threads started later. Restoring it for those
    # would also give these workers several cores again.
    return ThreadPoolExecutor(threads, "graphslice-one-core")


def _on_one_core(function: Callable[[_Item], _Result], item: _Item) -> _Result:
    _thread.cores = 1
    _use_one_core_in_torch()
    return function(item)


def _use_one_core_in_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads") and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def _renew_after_fork() -> None:
    """Make a forked process able to compute: it has the thread pools of its parent without their threads, to which work
    given never ends. Ours are made anew when needed; OpenMP's cannot be, so torch computes on one core."""
    _thread_pool.cache_clear()
    _single_cores.cache_clear()
    _use_one_core_in_torch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
