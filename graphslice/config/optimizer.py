"""Configuration of the optimiser and the learning rate schedule."""

from __future__ import annotations

from dataclasses import dataclass

from graphslice.config.reading import Section
from graphslice.errors import InputError


@dataclass
class OptimizerConfig(Section):
    """AdamW with linear warm-up and linear decay of the learning rate.

    Attributes:
        peak_lr: learning rate at the end of the warm-up.
        end_lr: learning rate at the end of the decay.
        warmup_steps: steps of the warm-up; default: 5% of the total.
        total_steps: steps until the end of the decay; default: all steps of the run.
        weight_decay: weight decay of AdamW.
        structure_lr_factor: ratio of the learning rate of the spatial and edge encodings to that of other weights.
            Attention scores have to change by several units to change the attention map, other weights by less.
        layer_lr_decay: ratio of the learning rate of each block to that of the next block, and of the embeddings to
            that of the first block; below 1 for fine-tuning.
    """

    peak_lr: float = 1e-3
    end_lr: float = 1e-9
    warmup_steps: int | None = None
    total_steps: int | None = None
    weight_decay: float = 0.01
    structure_lr_factor: float = 1.0
    layer_lr_decay: float = 1.0

    def __post_init__(self) -> None:
        for name in ("peak_lr", "structure_lr_factor", "layer_lr_decay"):
            if not getattr(self, name) > 0:
                raise InputError(f"optimizer.{name} must be more than 0, not {getattr(self, name)}")
        for name, minimum in (("end_lr", 0), ("weight_decay", 0), ("warmup_steps", 0), ("total_steps", 1)):
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise InputError(f"optimizer.{name} must be at least {minimum}, not {value}")
