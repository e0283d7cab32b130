"""Training of models: single runs, ensembles, fine-tuning and evaluation."""

from graphslice.training.run import RunResult
from graphslice.training.train_run import resume, train

__all__ = ["RunResult", "resume", "train"]
