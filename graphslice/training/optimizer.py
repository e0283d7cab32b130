"""The optimiser: learning rates of the parameters and their schedule; frozen parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from graphslice.config import OptimizerConfig
from graphslice.errors import InputError
from graphslice.nn import GraphTransformer
from graphslice.training.module import PropertyModule

_EMBEDDINGS = ("atoms.", "pairs.", "embedding_norm.")


def make_optimizer(
    module: PropertyModule, steps: int, elapsed: Callable[[], float], *, fused: bool
) -> tuple[AdamW, LambdaLR]:
    """Make the optimiser of a model and its heads, and the learning rate schedule, by steps or the share of the time.

    The fused implementation does not work with gradient scaling and clipping.
    """
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

    Raises :class:`InputError` if the warm-up is longer than the run, whose learning rate would not decay.
    """
    total = config.total_steps or steps
    if config.warmup_steps is not None and config.warmup_steps > total:
        raise InputError(
            f"optimizer.warmup_steps {config.warmup_steps:,} must not be more than the {total:,} steps in total"
        )
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
    """Group the trainable parameters by learning rate, in the format of PyTorch optimisers.

    The learning rate of the structural encodings is multiplied by ``structure_lr_factor``. Each block has
    ``layer_lr_decay`` times the learning rate of the next one; the embeddings count as a block before the first
    (layer-wise decay, Howard and Ruder 2018, section 3.2).
    """
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
    """Freeze ``"none"``, ``"embeddings"``, or ``"blocks:N"`` of a model: the embeddings and the first N blocks.

    Sets ``requires_grad`` of the parameters to False. Raises :class:`InputError` if there are fewer than N blocks.
    """
    if frozen == "none":
        return
    count = int(frozen.removeprefix("blocks:")) if frozen.startswith("blocks:") else 0
    if count > len(model.blocks):
        raise InputError(f"trainer.freeze blocks:{count}: the model has only {len(model.blocks)} blocks")
    for name, parameter in model.named_parameters():
        block = _block_index(name)
        if name.startswith(_EMBEDDINGS) or (block is not None and block < count):
            parameter.requires_grad_(False)


def _block_index(name: str) -> int | None:
    """Return the index of the block that a parameter belongs to, or None."""
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match.group(1)) if match else None
