"""Parallel map over a table with Ray Data, on the cores of one machine or of a cluster.

The order of the rows is preserved. If a worker process dies, it is restarted and its rows are processed again. Ray is
an optional dependency: ``pip install graphslice[ray]``.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from graphslice.errors import InputError, check_number, optional_packages

with optional_packages("the engine ray", "ray"):
    import ray
    from ray.data import ActorPoolStrategy, DataContext

Read = Callable[[Path, int], Iterator[Any]]
Work = Callable[[Any], pa.Table]

# Number of rows that a worker processes at a time.
_CHUNK_ROWS = 4096
# Size of the blocks into which Ray collects the output of a task; small blocks keep all workers busy.
_BLOCK_BYTES = 1 << 20


def map_table(
    files: list[Path],  # paths that every machine can read
    read: Read,  # read(file, rows) yields chunks of a file, of at most rows rows each, of a type that can be pickled
    make: Callable[[Any, bool], Work],  # make(shared, gpu), called once per worker, returns the function of a chunk
    shared: Any,  # sent to every worker once
    *,
    workers: int | None = None,  # None: one per GPU if on_gpu and the cluster has some, else one per core but one
    on_gpu: bool = False,  # True if the work benefits from a GPU
) -> Iterator[pa.Table]:
    """Apply a function to all chunks of files, and yield its tables in the order of the files and their rows."""
    check_number("workers", workers, 1)
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0)) if on_gpu else 0
        workers = workers or gpus or max(1, int(resources.get("CPU", 1)) - 1)
        reference = ray.put(shared)  # keeps the object alive for workers that are restarted
        paths = [{"file": str(file.resolve())} for file in files]
        chunks = ray.data.from_items(paths, override_num_blocks=len(files)).flat_map(partial(_read_file, read))
        dataset = chunks.map_batches(
            _Worker,
            fn_constructor_args=(make, [reference], gpus > 0),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers),
            num_gpus=1 if gpus else None,
        )
        yield from _iterate_in_order(dataset)


class _Worker:
    """Callable of a worker process, which creates the function of a chunk once."""

    def __init__(self, make: Callable[[Any, bool], Work], shared: list[ray.ObjectRef], gpu: bool) -> None:
        self.work = make(ray.get(shared[0]), gpu)

    def __call__(self, batch: pa.Table) -> pa.Table:
        return self.work(pickle.loads(batch["chunk"][0].as_py()))


def _read_file(read: Read, row: dict[str, str]) -> Iterator[dict[str, bytes]]:
    """Yield the chunks of a file as rows, which Ray moves between processes."""
    return ({"chunk": pickle.dumps(chunk)} for chunk in read(Path(row["file"]), _CHUNK_ROWS))


def _iterate_in_order(dataset: ray.data.Dataset) -> Iterator[pa.Table]:
    try:
        yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    except ray.exceptions.RayTaskError as error:
        # Ray wraps the exception of a task several times, as text.
        if match := re.search(r"graphslice\.errors\.InputError: (.*)", str(error)):
            raise InputError(match.group(1)) from None
        raise


@contextmanager
def _cluster() -> Iterator[dict[str, float]]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start Ray on this machine, and yield the available resources."""
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
