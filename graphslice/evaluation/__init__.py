"""How good predictions are, and the files that OGB-LSC takes."""

from graphslice.evaluation.metrics import mean_absolute_error, scores
from graphslice.evaluation.submission import write_submission

__all__ = ["mean_absolute_error", "scores", "write_submission"]
