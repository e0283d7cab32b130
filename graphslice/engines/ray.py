"""A function mapped over a table by Ray Data: on the cores of one machine or of many.

The rows come back in their order. A process that dies is started again and its rows are done again.
Ray is an extra: ``pip install graphslice[ray]``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from graphslice.errors import InputError

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
    from ray.data.block import BlockMetadata
except ImportError:
    raise InputError("--engine ray needs Ray: pip install 'graphslice[ray]'") from None

Read = Callable[[Path, int], Iterator[pa.Table]]
Work = Callable[[pa.Table], pa.Table]

# Rows that a process gets at a time.
_CHUNK_ROWS = 4096
# Ray joins what a task yields into blocks of this size; small ones keep every process busy.
_BLOCK_BYTES = 1 << 20


def map_table(
    files: list[Path],
    read: Read,
    make: Callable[[Any, bool], Work],
    shared: Any,
    *,
    workers: int | None = None,
    on_gpu: bool = False,
) -> Iterator[pa.Table]:
    """The rows of some files, each chunk of them changed by a function, in their order.

    Args:
        files: readable from every machine.
        read: ``read(file, rows)`` yields a file in chunks of at most so many rows.
        make: ``make(shared, gpu)`` is called once in each process, and gives what changes a chunk.
        shared: sent to every process once.
        workers: processes; one a GPU where they are wanted and there, else one a core.
        on_gpu: whether the work is better done on a GPU.

    Raises:
        InputError: for less than one worker; and what a process raised, such as for a table that cannot be read.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0)) if on_gpu else 0
        workers = workers or gpus or max(1, int(resources.get("CPU", 1)) - 1)
        sent = ray.put(shared)  # held here, for a process that is started again
        dataset = ray.data.read_datasource(_Files([file.resolve() for file in files], read)).map_batches(
            _Process,
            fn_constructor_args=(make, [sent], gpus > 0),
            batch_size=_CHUNK_ROWS,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers),
            num_gpus=1 if gpus else None,
        )
        yield from _iterate_in_order(dataset)


class _Process:
    """What each process holds: the work, made once."""

    def __init__(self, make: Callable[[Any, bool], Work], shared: list[ray.ObjectRef], gpu: bool) -> None:
        self.work = make(ray.get(shared[0]), gpu)

    def __call__(self, chunk: pa.Table) -> pa.Table:
        return self.work(chunk)


class _Files(Datasource):
    """One read task a file."""

    def __init__(self, files: list[Path], read: Read) -> None:
        super().__init__()
        self.files, self.read = files, read

    def estimate_inmemory_data_size(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def get_read_tasks(self, parallelism: int, per_task_row_limit=None, data_context=None) -> list[ReadTask]:
        def task(file: Path) -> ReadTask:
            read = self.read
            size, files = file.stat().st_size, [str(file)]
            metadata = BlockMetadata(num_rows=None, size_bytes=size, input_files=files, exec_stats=None)
            return ReadTask(lambda: read(file, _CHUNK_ROWS), metadata)

        return [task(file) for file in self.files]


def _iterate_in_order(dataset: ray.data.Dataset) -> Iterator[pa.Table]:
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    except ray.exceptions.RayTaskError as error:
        # What a task raised comes wrapped several times, as text.
        if found := re.search(r"graphslice\.errors\.InputError: (.*)", str(error)):
            raise InputError(found.group(1)) from None
        raise


@contextmanager
def _cluster() -> Iterator[dict[str, float]]:
    """What the cluster has: the one that ``RAY_ADDRESS`` names, or this machine."""
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(logging_level=logging.ERROR, include_dashboard=False, log_to_driver=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current()
    before = context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars
    context.target_max_block_size = _BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    try:
        yield ray.cluster_resources()
    finally:
        context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars = before
        if started:
            ray.shutdown()
