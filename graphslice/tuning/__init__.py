"""Search of hyperparameters by inner validation, within a budget of time or trials."""

from graphslice.tuning.tune import resume, tune

__all__ = ["resume", "tune"]
