"""Check of the operator backends against plain torch, before the first step of a run."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from rich.console import Console

from graphslice.doctor.agreement import PROGRAM, extreme_batches, faulty_backends
from graphslice.ops.dispatch import OPERATORS
from graphslice.program.run import disable_programs
from graphslice.training.module import PropertyModule

#: Dtype of matrix products, by Lightning's name of the precision.
DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class BackendCheck(pl.Callback):
    """Disable backends that fail in the model, or whose results differ from plain torch.

    The check computes the smallest and the largest training molecules on the device and in the precision of the run.

    Args:
        console: where to report disabled backends.
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
                f"{name}: {reason}; this run uses plain torch instead (graphslice doctor shows details)",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
