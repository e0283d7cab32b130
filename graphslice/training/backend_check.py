"""Whether this machine computes a run's steps as plain torch does, before the first of them."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from rich.console import Console

from graphslice.doctor.agreement import PROGRAM, extreme_batches, faulty_backends
from graphslice.ops.dispatch import OPERATORS
from graphslice.ops.program import disable_programs
from graphslice.training.module import PropertyModule

#: The dtype of the products by Lightning's name of a precision.
DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class BackendCheck(pl.Callback):
    """Takes the backends out of use that fail in the model, or compute something else than plain torch.

    The smallest and the largest training molecules go through the model on the run's device and in its precision.

    Args:
        console: where what was found is told.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, PropertyModule)
        data = trainer.datamodule  # type: ignore[attr-defined]
        batches = extreme_batches(data.store, data.splits["train"], module.config.collate_settings)
        dtype = DTYPES[str(trainer.precision)]
        for name, reason in faulty_backends(module.model, [b.to(module.device) for b in batches], dtype).items():
            if name == PROGRAM:
                disable_programs()
            else:
                for backend in OPERATORS[name].backends:
                    OPERATORS[name].disable(backend)
            self.console.print(
                f"{name}: {reason}; this run computes it with plain torch (graphslice doctor shows more)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
