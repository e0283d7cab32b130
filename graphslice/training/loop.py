"""The training loop of a run: steps, validations, checkpoints, limits and logs, in the order in which they happen.

Also its optimiser and learning rates, and the check and compilation of fast training steps.
"""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from graphslice.batch import GraphBatch
from graphslice.config import OptimizerConfig
from graphslice.data.batches import extreme_batches
from graphslice.data.datamodule import MoleculeData
from graphslice.errors import check_number
from graphslice.evaluation.format_scores import score_text
from graphslice.evaluation.metrics import METRICS
from graphslice.nn import GraphTransformer
from graphslice.nn.agreement import compile_checked, faulty_backends
from graphslice.ops.dispatch import OPERATORS
from graphslice.runs.checkpoint import save_checkpoint
from graphslice.runs.run_files import BEST, LAST
from graphslice.runs.torch_io import load_weights, torch_bytes
from graphslice.system.console import Report, interrupts_are_handled, remark, signals_handled, silent
from graphslice.system.files import atomic_write
from graphslice.training.devices import DTYPES, autocast, device_share
from graphslice.training.module import MONITOR, PropertyModule

# Interval in steps at which last.ckpt may be due, and at which several devices agree on the time or a stop.
_SYNC_EVERY = 20
# Interval in steps at which the loss and the learning rates are logged.
_LOG_EVERY = 50


class Interrupted(KeyboardInterrupt):
    """Raised when the user stops the run."""


@dataclass
class TrainingState:
    """Where training stands, apart from weights, optimiser and learning rates."""

    step: int = 0  # optimiser steps
    seconds: float = 0.0  # with validations
    validated: int = -1  # step of the last validation
    best: float | None = None  # validation score, of :data:`~graphslice.training.module.MONITOR`
    waited: int = 0  # validations since the best one


class TrainingLoop:
    """Training of a model until it reaches its limit of steps or time, runs out of patience, or is stopped.
    ``after_epoch`` is called with this loop after every epoch; an exception ends the training."""

    def __init__(
        self,
        fabric: Fabric,
        module: PropertyModule,
        data: MoleculeData,
        out: Path,
        steps: int,  # length of the run in optimiser steps
        console: Console,
        name: str = "network",  # for the progress
        report: Report = silent,
        after_epoch: Callable[[TrainingLoop], object] | None = None,
    ) -> None:
        self.after_epoch = after_epoch
        self.fabric, self.module, self.data, self.out, self.steps = fabric, module, data, out, steps
        self.settings, self.state = module.config.trainer, TrainingState()
        self.limit = None if self.settings.max_minutes is None else 60 * self.settings.max_minutes
        self.elapsed = 0.0  # fraction of the time limit that has passed, as last read
        self._begin: float | None = None  # time of the clock at which the training would have begun without a stop
        self.fast = FastSteps(module, data, fabric, steps, self._seconds_left, console)
        self._report, self.name, self._score = report, name, ""
        share = device_share(fabric)
        self.train_batches = data.train_loader(share, lambda: self.state.step)
        self.valid_batches = data.eval_loader("valid", share)
        fabric.to_device(module)
        self.model = fabric.strategy.setup_module(module)  # over several devices, averages the gradients
        fused = share.precision != "16-mixed"  # gradients are scaled
        self.optimizer, self.schedule = make_optimizer(module, steps, lambda: self.elapsed, fused=fused)
        self._saved = time.monotonic()
        self._signals: list[int] = []  # received, and still to take effect

    def run(self, last: Path | None) -> None:
        """Train from scratch, or from the checkpoint ``last``; raises Interrupted if a signal stops the run, and
        KeyboardInterrupt at once at a second signal that is Ctrl-C."""
        numbers = (signal.SIGTERM, *([signal.SIGINT] if interrupts_are_handled() else []))
        with signals_handled(self._receive_signal, numbers):
            if last is not None:
                self._restore(last)
            self.fast.check_backends()
            self._read_clock()
            if self._finished():
                return
            for logger in self.fabric.loggers:
                logger.save()  # creates the logs, which takes seconds
            self._begin = time.monotonic() - self.state.seconds
            self._report(self.fraction_done, "")
            self.fast.begin(self.state.step)
            while not self._finished():
                self._train_epoch()
            for logger in self.fabric.loggers:
                logger.finalize("success")

    def _finished(self) -> bool:
        """True if neither a step nor a validation remains; checked before every epoch."""
        patience = self.settings.patience
        if self._awaits_validation():
            return False
        return self._out_of_limits() or (patience is not None and self.state.waited >= patience)

    def _awaits_validation(self) -> bool:
        """True between the last step before a validation and the validation, in which a run may be stopped."""
        state = self.state
        return state.step not in (0, state.validated) and (
            self._out_of_limits() or state.step % len(self.train_batches) == 0
        )

    def _out_of_limits(self) -> bool:
        return self.state.step >= self.steps or self.elapsed >= 1

    def _train_epoch(self) -> None:
        self.fast.begin_epoch()
        if not self._awaits_validation():
            self._train_steps()
        self._validate()
        self._save_last()
        self._stop_if_signalled()
        if self.after_epoch is not None:
            self.after_epoch(self)

    def _train_steps(self) -> None:
        total, molecules = torch.zeros((), device=self.fabric.device), 0
        for batch in self.train_batches:
            if self.fabric.world_size == 1 or self.state.step % _SYNC_EVERY == 0:
                self._read_clock()
            batch = batch.to(self.fabric.device, non_blocking=True)
            loss = self._step(batch)
            total, molecules = total + loss * len(batch), molecules + len(batch)
            ended = self._out_of_limits()
            self.fast.after_step(self.state.step)
            self._show_progress()
            if ended or self.state.step % _LOG_EVERY == 0:
                self._log({"train_loss_step": float(loss)})
            if ended:
                break
            if self.state.step % _SYNC_EVERY == 0 and self.state.step % len(self.train_batches):
                if self.fabric.broadcast(time.monotonic() - self._saved > 60 * self.settings.checkpoint_minutes):
                    self._save_last()
                self._stop_if_signalled()
            self._stop_if_alone()
        self._log({"train_loss_epoch": float(total) / molecules})

    def _step(self, batch: GraphBatch) -> Tensor:
        self.module.zero_grad()  # before the forward pass, since a CUDA graph may overwrite the memory of the gradients
        if self.fast.compiled:
            torch.compiler.cudagraph_mark_step_begin()  # loads torch's compiler, which takes a second
        # The dropout mask depends only on seed, step and device, so a resumed run draws the same.
        seed = (self.settings.seed, self.state.step, self.fabric.global_rank)
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
        with autocast(self.fabric):
            loss = self.model(batch)
        self.fabric.backward(loss)
        if clip := self.settings.gradient_clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=clip, error_if_nonfinite=False)
        self.fabric.strategy.optimizer_step(self.optimizer)
        self.state.step += 1
        if self.state.step % _LOG_EVERY == 0:
            rates = self.schedule.get_last_lr()
            names = ["lr-AdamW"] if len(rates) == 1 else [f"lr-AdamW/pg{i + 1}" for i in range(len(rates))]
            self.fabric.log_dict(dict(zip(names, rates, strict=True)), self.state.step - 1)
        self.schedule.step()
        return loss.detach()

    def _validate(self) -> None:
        """Score the validation set, log the scores, and write ``model.safetensors`` if they are the best so far;
        without a validation set it is the model after the last step."""
        if not len(self.data.splits["valid"]):
            self.state.seconds, self.state.validated = self.seconds, self.state.step
            if self._out_of_limits():
                self._save_best()
            return
        self.module.zero_grad()  # frees memory
        self.module.eval()
        with torch.inference_mode(), autocast(self.fabric):
            for batch in self.valid_batches:
                self.module.validate(batch.to(self.fabric.device, non_blocking=True))
                self._show_progress()
                self._stop_if_alone()
        self.module.train()
        scores = self.module.validation_scores(self.data.dataset)
        state, lower_is_better = self.state, METRICS[self.module.metric].loss
        state.seconds, state.validated = self.seconds, state.step
        self._log({**scores, "seconds": state.seconds})
        state.waited += 1
        if state.best is None or lower_is_better(scores[MONITOR]) < lower_is_better(state.best):
            state.best, state.waited = scores[MONITOR], 0
            self._save_best()
        name = self.module.metric
        self._score = f", {METRICS[name].label} {score_text(scores[f'val_{name}'])}"

    def _show_progress(self) -> None:
        epoch = -(-self.state.step // len(self.train_batches))
        self._report(self.fraction_done, f"{self.name}{self._score}, epoch {epoch:,}")

    @property
    def seconds(self) -> float:
        """Seconds of training so far, with validations and before resumptions."""
        return self.state.seconds if self._begin is None else time.monotonic() - self._begin

    @property
    def fraction_done(self) -> float:
        """Completed fraction of the training, by steps or time, whichever is larger."""
        return max(self.state.step / max(1, self.steps), self.elapsed)

    def _seconds_left(self) -> float | None:
        return None if self.limit is None else self.limit - self.seconds

    def _read_clock(self) -> None:
        """Update the fraction of the time limit that has passed; all devices use the clock of the first."""
        if self.limit is not None:
            self.elapsed = min(1.0, self.fabric.broadcast(self.seconds) / self.limit)

    def _receive_signal(self, number: int, frame: object) -> None:
        """Note Ctrl-C or SIGTERM, which stops the run between two steps; a second Ctrl-C stops it at once. Ctrl-C after
        SIGTERM is no wish of a person: systemd and Slurm send both to all processes."""
        if number == signal.SIGINT and signal.SIGINT in self._signals:
            raise KeyboardInterrupt
        self._signals.append(number)

    def _stop_if_signalled(self) -> None:
        """Save the state and stop all devices if one of them has received a signal."""
        if self.fabric.strategy.reduce_boolean_decision(bool(self._signals), all=False):
            self._save_last()
            raise Interrupted

    def _stop_if_alone(self) -> None:
        """Do so with the only device, without waiting for the step at which several would agree."""
        if self.fabric.world_size == 1:
            self._stop_if_signalled()

    def _log(self, values: dict[str, float]) -> None:
        epoch = (self.state.step - 1) // len(self.train_batches)
        self.fabric.log_dict({"epoch": epoch, **values}, self.state.step - 1)
        for logger in self.fabric.loggers:
            logger.save()

    def _save_last(self) -> None:
        self._saved, self.state.seconds = time.monotonic(), self.seconds
        training = {
            "training": asdict(self.state),
            "optimizer_states": [self.optimizer.state_dict()],
            "lr_schedulers": [self.schedule.state_dict()],
            "precision": self.fabric.strategy.precision.state_dict(),  # scale of the loss in float16
        }
        if self.fabric.is_global_zero:
            with atomic_write(self.out / LAST) as temporary:
                temporary.write_bytes(torch_bytes(self.module.state() | training))

    def _save_best(self) -> None:
        if self.fabric.is_global_zero:
            save_checkpoint(self.module.trained(), self.out / BEST)

    def _restore(self, last: Path) -> None:
        contents = load_weights(last)
        self.module.restore(contents)
        self.optimizer.load_state_dict(contents["optimizer_states"][0])
        self.schedule.load_state_dict(contents["lr_schedulers"][0])
        if contents["precision"]:  # empty unless the run was trained in float16 before
            self.fabric.strategy.precision.load_state_dict(contents["precision"])
        self.state = TrainingState(**contents["training"])


_EMBEDDINGS = ("atoms.", "pairs.", "embedding_norm.")


def make_optimizer(
    module: PropertyModule, steps: int, elapsed: Callable[[], float], *, fused: bool
) -> tuple[AdamW, LambdaLR]:
    """Make the optimiser of a model and its heads, and the learning rate schedule, by steps or the share of the time.
    The ``fused`` implementation does not work with gradient scaling and clipping."""
    settings = module.config.optimizer
    groups = parameter_groups(module.model, settings)
    if module.auxiliary is not None:
        groups.append({"params": list(module.auxiliary.parameters()), "lr": settings.max_lr})
    optimizer = AdamW(groups, lr=settings.max_lr, weight_decay=settings.weight_decay, fused=fused)
    factor, total = linear_schedule(settings, steps), settings.total_steps or steps
    scale = max(1.0, total / steps)  # a shorter run, like one with a time limit, goes through the whole schedule
    # The progress of the run is that of its steps or of its time limit, whichever is further.
    return optimizer, LambdaLR(optimizer, lambda step: factor(max(step * scale, elapsed() * total)))


def linear_schedule(config: OptimizerConfig, steps: int) -> Callable[[float], float]:
    """Return the factor of ``peak_lr`` by step: linear warm-up, then linear decay to ``end_lr`` (Ying et al. 2021, B).
    Raises :class:`InputError` if the warm-up is longer than the run, whose learning rate would not decay."""
    total = config.total_steps or steps
    check_number("optimizer.warmup_steps", config.warmup_steps, 0, total)
    warmup = config.warmup_steps if config.warmup_steps is not None else max(1, round(0.05 * total))
    end = config.end_lr / config.max_lr

    def factor(step: float) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return end
        return end + (1 - end) * (total - step) / max(1, total - warmup)

    return factor


def parameter_groups(model: GraphTransformer, settings: OptimizerConfig) -> list[dict[str, Any]]:
    """Group the trainable parameters by learning rate: ``structure_lr_factor`` multiplies that of the structural
    encodings, and each block has ``layer_lr_decay`` times that of the next (Howard and Ruder 2018, section 3.2); the
    embeddings count as a block before the first."""
    groups: dict[float, list[nn.Parameter]] = defaultdict(list)
    depth = len(model.blocks)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        block = _block_index(name)
        before_head = depth - block if block is not None else depth + 1 if name.startswith(_EMBEDDINGS) else 0
        factor = settings.layer_lr_decay**before_head
        if name.startswith("pairs."):
            factor *= settings.structure_lr_factor
        groups[factor].append(parameter)
    return [{"params": parameters, "lr": settings.max_lr * factor} for factor, parameters in groups.items()]


def freeze(model: GraphTransformer, frozen: str) -> None:
    """Freeze ``"none"``, ``"embeddings"``, or ``"blocks:N"``: the embeddings and the first N blocks; raises
    :class:`InputError` if there are fewer than N blocks."""
    if frozen == "none":
        return
    count = int(frozen.removeprefix("blocks:")) if frozen.startswith("blocks:") else 0
    check_number("trainer.freeze blocks", count, 0, len(model.blocks))
    for name, parameter in model.named_parameters():
        block = _block_index(name)
        if name.startswith(_EMBEDDINGS) or (block is not None and block < count):
            parameter.requires_grad_(False)


def _block_index(name: str) -> int | None:
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match.group(1)) if match else None


# Seconds of torch.compile per batch width (number of rows), forward and backward with CUDA graphs, on two cores: about
# 24 for the four layers of the preset `small`, 28 for the twelve layers of the paper's size.
_SECONDS_PER_WIDTH, _SECONDS_PER_LAYER = 22.0, 0.5
# Assumed ratio of the time of eager to compiled steps; where kernel launches dominate, half of the gain is reached.
_SPEEDUP = 1.5
# The saved time must exceed the cost by this factor, since both are estimates.
_MARGIN = 1.5
# Warm-up steps, in which kernels are built and memory is allocated, and the steps measured after them.
_WARM_UP, _MEASURED = 20, 30


class FastSteps:
    """Fast backends and compiled steps, as far as they compute the right values and compilation pays off: on a GPU, by
    timing the first steps, for which the first device decides. Compiled steps must equal eager ones up to rounding, on
    the smallest and the largest molecules."""

    def __init__(
        self,
        module: PropertyModule,
        data: MoleculeData,
        fabric: Fabric,
        steps: int,
        seconds_left: Callable[[], float | None],
        console: Console,
    ) -> None:
        self.config, self.model, self.data, self.fabric = module.config, module.model, data, fabric
        self.steps, self.seconds_left, self.console = steps, seconds_left, console
        self.compiled = False
        self._measuring = False
        self._times: list[float] = []
        self._since: float | None = None

    def check_backends(self) -> None:
        """On a GPU, disable the operators that fail in the model, or whose results differ from plain torch."""
        if self.fabric.device.type != "cuda":
            return
        batches = extreme_batches(self.data.store, self.data.splits["train"], **self.data.config.collate_settings)
        batches = [batch.to(self.fabric.device) for batch in batches]
        dtype = DTYPES[device_share(self.fabric).precision]
        for name, reason in faulty_backends(self.model, batches, dtype).items():
            for backend in OPERATORS[name].backends:
                OPERATORS[name].disable(backend)
            self._report(f"{name}: {reason}; this run uses plain torch instead")

    def begin(self, step: int) -> None:
        """Compile or begin to measure before the first step of the run or of its resumption."""
        wanted = self.config.trainer.compile
        self._first = step
        self._measuring = wanted == "auto" and self.fabric.device.type == "cuda"
        if wanted == "on":
            self._compile()

    def begin_epoch(self) -> None:
        """Do not measure the time since the last step, which includes a validation."""
        self._since = None

    def after_step(self, step: int) -> None:
        """Measure a step, and compile after the last measured one if it will pay off."""
        if not self._measuring or step - self._first < _WARM_UP:
            return
        torch.cuda.synchronize(self.fabric.device)
        now = time.perf_counter()
        if self._since is not None:
            self._times.append(now - self._since)
        self._since = now
        if len(self._times) == _MEASURED:
            self._measuring = False
            if self.fabric.broadcast(self._is_worth_it(step)):
                self._compile()

    def _compile(self) -> None:
        """Compile the model, unless compiled steps differ from eager steps."""
        share, device = device_share(self.fabric), self.fabric.device
        size = len(range(share.rank, self.config.trainer.batch_size, share.world))
        mode = "reduce-overhead" if share.kind == "cuda" else "default"
        batches = [batch.to(device) for batch in self.data.extreme_train_batches(size, share)]
        reason = compile_checked(self.model, batches, DTYPES[share.precision], mode=mode)
        # The first device decides for all: devices that run different programs would wait for each other forever.
        self.compiled = not self.fabric.broadcast(reason is not None)
        if not self.compiled:
            self.model.run_eagerly()
        if reason is not None:
            self._report(f"compiled steps: {reason}; continuing with eager steps")

    def _is_worth_it(self, step: int) -> bool:
        """True if compiled steps are expected to save clearly more of the rest of the run than compilation takes, once
        for each batch width, by the median time of the measured steps."""
        left = float(np.median(self._times)) * (self.steps - step)
        if (limit := self.seconds_left()) is not None:
            left = min(left, limit)
        widths = self.data.num_train_widths(device_share(self.fabric))
        cost = widths * (_SECONDS_PER_WIDTH + _SECONDS_PER_LAYER * self.config.model.layers)
        return left * (1 - 1 / _SPEEDUP) > _MARGIN * cost

    def _report(self, message: str) -> None:
        remark(f"{message} (graphslice doctor shows details)", self.console, "warning")
