"""Training: the Lightning module, its callbacks, and runs from start to finish."""

from graphslice.training.entry import resume, train
from graphslice.training.run import RunResult

__all__ = ["RunResult", "resume", "train"]
