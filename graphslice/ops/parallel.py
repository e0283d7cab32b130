"""Run compiled CPU kernels on as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

# Below this many values a second thread costs more than it saves.
_WORTH = 1 << 17


def over_parts(kernel: Callable[[int, int], None], parts: int, values: int) -> None:
    """Call ``kernel(begin, end)`` for all parts, in parallel where there is much to do.

    Args:
        kernel: compiled with ``nogil``; works on parts ``begin`` to ``end``.
        parts: how many there are: samples, or rows.
        values: how many numbers they hold together.
    """
    threads = min(torch.get_num_threads(), parts, values // _WORTH)
    if threads < 2:
        kernel(0, parts)
        return
    ends = [parts * part // threads for part in range(threads + 1)]
    futures = [_pool(threads - 1).submit(kernel, *ends[part : part + 2]) for part in range(1, threads)]
    kernel(*ends[:2])
    for future in futures:
        future.result()


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "graphslice-ops")
