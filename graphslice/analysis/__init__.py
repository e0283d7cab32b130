"""Model analysis: atom contributions, singular spectra, rank-1 residuals and attention maps."""

from graphslice.analysis.activations import Activations, activations
from graphslice.analysis.attribution import Attribution, attribute
from graphslice.analysis.rank_collapse import (
    attention_bound,
    mixer_stack_outputs,
    permutation_bound,
    rank_one_residual,
    rows_residual,
    singular_spectrum,
)

__all__ = [
    "Activations",
    "Attribution",
    "activations",
    "attention_bound",
    "attribute",
    "mixer_stack_outputs",
    "permutation_bound",
    "rank_one_residual",
    "rows_residual",
    "singular_spectrum",
]
