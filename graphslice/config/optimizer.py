"""How the weights learn."""

from __future__ import annotations

from dataclasses import dataclass

from graphslice.errors import InputError


@dataclass
class OptimizerConfig:
    """AdamW, a linear warm-up, then a linear decay.

    Attributes:
        peak_lr: learning rate at the end of the warm-up.
        end_lr: learning rate at the end of the decay.
        warmup_steps: steps of the warm-up; 5% of the total when not given.
        total_steps: steps until the end of the decay; those of the run when not given.
        weight_decay: of AdamW.
        structure_lr_factor: the learning rate of the spatial and edge encodings over that of the rest.
            An attention score has to move by several units before the map is another, a weight by less.
        layer_lr_decay: the learning rate of each block over that of the block after it, and of the embeddings over
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
        for name, least in (("end_lr", 0), ("weight_decay", 0), ("warmup_steps", 0), ("total_steps", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InputError(f"optimizer.{name} must be at least {least}, not {value}")
