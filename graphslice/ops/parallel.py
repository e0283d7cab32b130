"""Run compiled CPU kernels on as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

# Below this many values a second thread costs more than it saves.
_WORTH = 1 << 17


def over_samples(kernel: Callable[[int, int], None], samples: int, values: int) -> None:
    """Call ``kernel(begin, end)`` for all samples, in parallel where there is much to do.

    Args:
        kernel: compiled with ``nogil``; works on samples ``begin`` to ``end``.
        samples: how many there are.
        values: how many numbers they hold together.
    """
    threads = min(torch.get_num_threads(), samples, values // _WORTH)
    if threads < 2:
        kernel(0, samples)
        return
    ends = [samples * part // threads for part in range(threads + 1)]
    futures = [_pool(threads - 1).submit(kernel, *ends[part : part + 2]) for part in range(1, threads)]
    kernel(*ends[:2])
    for future in futures:
        future.result()


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "graphslice-ops")
