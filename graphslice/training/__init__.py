"""Training: the Lightning module, its callbacks, and runs from start to finish."""

from graphslice.training.run import RunResult
from graphslice.training.train_run import resume, train

__all__ = ["RunResult", "resume", "train"]
