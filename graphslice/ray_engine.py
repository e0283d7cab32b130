"""Featurize and predict over Ray Data: on the cores of one machine or of many.

The same functions as without Ray do the work, in processes wherever the cluster has room; the
rows come back in their order. A process that dies is started again and its rows are done again.
Ray is an extra: ``pip install graphslice[ray]``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from graphslice.errors import InputError

try:
    import ray
    from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
    from ray.data.block import BlockMetadata
except ImportError:
    raise InputError("--engine ray needs Ray: pip install 'graphslice[ray]'") from None

if TYPE_CHECKING:
    from graphslice.checkpoint import Checkpoint
    from graphslice.data.store import StoreInfo

#: Rows that a process gets at a time.
_BATCH = 4096
# Ray joins what a task yields into blocks of this size; small ones keep every process busy.
_BLOCK_BYTES = 1 << 20


class _Tables(Datasource):
    """The files of a table, one read task each."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        from graphslice.data.tables import shards

        self.files = [file.resolve() for file in shards(path)]

    def estimate_inmemory_data_size(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def get_read_tasks(self, parallelism: int, per_task_row_limit=None, data_context=None) -> list[ReadTask]:
        def reader(file: Path):
            def read() -> Iterator[pa.Table]:
                from graphslice.data.tables import open_table

                with open_table(file, _BATCH) as table:
                    yield from table.pieces

            return read

        return [
            ReadTask(
                reader(file),
                BlockMetadata(
                    num_rows=None,
                    size_bytes=file.stat().st_size,
                    input_files=[str(file)],
                    exec_stats=None,
                ),
            )
            for file in self.files
        ]


class _Predict:
    """A model in a process of its own."""

    def __init__(self, checkpoint: list[ray.ObjectRef], column: int, threads: int) -> None:
        import torch

        from graphslice.predict import Predictor

        torch.set_num_threads(threads)
        self.predictor, self.column = Predictor(ray.get(checkpoint[0])), column

    def __call__(self, piece: pa.Table) -> pa.Table:
        from graphslice.data.tables import texts
        from graphslice.predict import with_answers

        (answers,) = self.predictor.predict_stream([texts(piece.column(self.column))])
        return with_answers(piece, answers)


class _Featurize:
    """Rows of a table to rows of a store."""

    def __init__(self, column: str, targets: list[str], split: str | None, info: StoreInfo) -> None:
        self.column, self.targets, self.split, self.info = column, targets, split, info

    def __call__(self, piece: pa.Table) -> pa.Table:
        from graphslice.data.featurize import to_batch
        from graphslice.data.sources import labelled

        rows = labelled(piece, self.column, self.targets, self.split)
        return pa.Table.from_batches([to_batch(rows, self.info)]).replace_schema_metadata(None)


def predict_pieces(path: Path, checkpoint: Checkpoint, column: int, workers: int | None = None) -> Iterator[pa.Table]:
    """The rows of a table with a model's answers, in their order.

    Args:
        path: of the file or folder, readable from every machine.
        checkpoint: of the model; it is sent to every process once.
        column: which one has the SMILES, from 0.
        workers: processes; one a GPU where the cluster has GPUs, else one a core.

    Raises:
        InputError: if the table cannot be read.
    """
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0))
        workers = workers or gpus or max(1, int(resources.get("CPU", 1)) - 1)
        sent = ray.put(checkpoint)  # held here, for a process that is started again
        dataset = ray.data.read_datasource(_Tables(path)).map_batches(
            _Predict,
            fn_constructor_args=([sent], column, 2 if gpus else 1),
            batch_size=_BATCH,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers),
            num_gpus=1 if gpus else None,
        )
        yield from _in_order(dataset)


def featurize_pieces(
    path: Path, columns: tuple[str, list[str], str | None], info: StoreInfo, workers: int | None = None
) -> Iterator[pa.Table]:
    """The rows of a table as rows of a store, in their order.

    Args:
        path: of the file or folder, readable from every machine.
        columns: of :func:`~graphslice.data.sources.label_columns`.
        info: of the store.
        workers: processes; one a core.

    Raises:
        InputError: if the table cannot be read.
    """
    with _cluster() as resources:
        dataset = ray.data.read_datasource(_Tables(path)).map_batches(
            _Featurize,
            fn_constructor_args=(*columns, info),
            batch_size=_BATCH,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=workers or max(1, int(resources.get("CPU", 1)) - 1)),
        )
        yield from _in_order(dataset)


def _in_order(dataset: ray.data.Dataset) -> Iterator[pa.Table]:
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
