"""Parallel map with Ray, on the cores of one machine or of a cluster.

If a worker process dies, it is restarted and its item is processed again. Ray is an optional dependency: ``pip install
graphslice[ray]``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphslice.errors import InputError, check_number, optional_packages

with optional_packages("the engine ray", "ray"):
    import ray
    from ray.util import ActorPool


def map_on_cluster(
    items: Sequence[Any],
    make: Callable[[Any], Callable[[Any], Any]],  # make(shared), called once per worker, returns the function
    shared: Any,  # sent to every worker once
    *,
    workers: int | None = None,  # None: one per GPU if on_gpu and the cluster has some, else one per core
    on_gpu: bool = False,  # True if the work benefits from a GPU
) -> Iterator[Any]:
    """Yield the results of a function of items, in their order. Its InputError is raised here."""
    check_number("workers", workers, 1)
    with _cluster() as resources:
        gpus = int(resources.get("GPU", 0)) if on_gpu else 0
        workers = workers or gpus or int(resources.get("CPU", 1))
        # Ray gives a worker of one core one thread.
        restarted: dict[str, int] = {"max_restarts": -1, "max_task_retries": -1}
        actor = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, **restarted)(_Worker)
        reference = ray.put(shared)  # keeps the object alive for workers that are restarted
        pool = ActorPool([actor.remote(make, [reference]) for _ in range(min(workers, len(items)))])
        try:
            yield from pool.map(lambda worker, item: worker.work.remote(item), items)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise error.cause from None
            raise


class _Worker:
    """A worker process, which creates the function once."""

    def __init__(self, make: Callable[[Any], Callable[[Any], Any]], shared: list[ray.ObjectRef]) -> None:
        self._function = make(ray.get(shared[0]))

    def work(self, item: Any) -> Any:
        """Process an item."""
        return self._function(item)


@contextmanager
def _cluster() -> Iterator[dict[str, float]]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start Ray on this machine, and yield the available resources."""
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(logging_level=logging.ERROR, include_dashboard=False, log_to_driver=False)
    try:
        yield ray.cluster_resources()
    finally:
        if started:
            ray.shutdown()
