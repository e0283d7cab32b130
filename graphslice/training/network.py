"""Training of one network: its module, its initial weights, the loop on all devices; also without a fold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console

from graphslice.data.datamodule import MoleculeData
from graphslice.inference.predictor import Predictor
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import BEST, LAST
from graphslice.system.threads import single_threaded_torch
from graphslice.training.devices import make_fabric
from graphslice.training.fine_tuning import (
    fit_linear_probe,
    load_pretrained_weights,
    print_known,
)
from graphslice.training.loop import Interrupted, Part, TrainingLoop, freeze
from graphslice.training.module import PropertyModule
from graphslice.training.resolve import CompleteConfig, run_steps


def new_module(complete: CompleteConfig, data: MoleculeData) -> PropertyModule:
    """Make the training module of a run, with random weights."""
    labels, tasks = data.train_auxiliary_labels(), data.dataset.tasks
    return PropertyModule(complete.config, tasks, data.train_labels, complete.metric, labels, complete.devices.total)


def fold_steps(complete: CompleteConfig, rest: MoleculeData) -> int:
    """Number of steps of the training without a fold; ``rest``: the other molecules."""
    return run_steps(complete.config, rest.dataset.tasks, len(rest.splits["train"]))


def train_without(
    fold: np.ndarray,
    complete: CompleteConfig,
    data: MoleculeData,
    folder: Path,
    part: Part,
    console: Console,
    after_epoch: Callable[[TrainingLoop], object] | None = None,
) -> Predictor:
    """Train the network without the rows of a fold, or continue its training in a folder; return its predictor."""
    rest = data.without(fold)
    fabric = make_fabric(complete.devices, folder, fresh=True, log=False)
    if not (folder / BEST).exists():
        folder.mkdir(exist_ok=True)
        last = folder / LAST if (folder / LAST).exists() else None
        module = new_module(complete, rest)
        initialise_weights(module, rest, last is None, Console(quiet=True))
        steps = fold_steps(complete, rest)
        run_loop(last, fabric, module, rest, folder, steps, console, part=part, after_epoch=after_epoch)
    return Predictor(read_checkpoint(folder / BEST), fabric.device)


def run_loop(last: Path | None, fabric: Fabric, *arguments: Any, **options: Any) -> TrainingLoop:
    """Make and run a :class:`TrainingLoop` on all devices, from scratch or from the checkpoint ``last``; return it."""
    on_cpu = fabric.device.type == "cpu"
    with _all_devices(fabric), single_threaded_torch() if on_cpu else nullcontext():
        loop = TrainingLoop(fabric, *arguments, **options)
        loop.run(last)
    return loop


@contextmanager
def _all_devices(fabric: Fabric) -> Iterator[None]:
    """Launch a process for every other device, and stop all of them if one is stopped or fails."""
    try:
        fabric.launch()
        yield
    except Interrupted:  # all devices have stopped; the first one reports it
        if fabric.is_global_zero:
            raise
    except BaseException as error:
        for process in getattr(fabric.strategy.launcher, "procs", []):  # those that this one launched
            process.kill()  # they may wait for it forever
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted from None
        raise


def initialise_weights(module: PropertyModule, data: MoleculeData, fresh: bool, console: Console) -> None:
    """Initialise a new run from its pretrained checkpoint, if it has one, and freeze the configured parameters."""
    config = module.config
    reads_graph = any(block.mixer.reads for block in module.model.blocks)
    if module.world > 1 and not reads_graph:  # DDP expects a gradient of every parameter
        module.model.pairs.requires_grad_(False)
    if module.model.descriptors is not None:
        module.model.descriptors.fit(torch.from_numpy(data.train_descriptors()))
    if config.origin is None:
        return
    if fresh:
        origin = read_checkpoint(config.origin)
        message, is_all = load_pretrained_weights(module.model, origin, module.tasks, config.data.descriptors)
        if not is_all and fit_linear_probe(module.model, data):
            message += "; a linear probe initialises the output layer"
        message = f"fine-tuning from {config.init_from}: {message}; peak learning rate {config.optimizer.max_lr:g}"
        console.out(message, highlight=False)
        print_known(origin, str(config.init_from), data, console)
    freeze(module.model, config.trainer.freeze)
    if config.trainer.freeze != "none":
        trainable = sum(p.numel() for p in module.model.parameters() if p.requires_grad)
        console.print(f"frozen: {config.trainer.freeze}; {trainable:,} trainable parameters", highlight=False)
