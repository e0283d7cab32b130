"""What a model does inside: contributions of atoms, spectra, residuals and maps."""

from graphslice.analysis.attribution import Attribution, attribute, attribute_graph
from graphslice.analysis.collapse import attention_bound, permutation_bound, through_mixers
from graphslice.analysis.spectra import rank_one_residual, rows_residual, singular_spectrum
from graphslice.analysis.trace import Trace, trace

__all__ = [
    "Attribution",
    "Trace",
    "attention_bound",
    "attribute",
    "attribute_graph",
    "permutation_bound",
    "rank_one_residual",
    "rows_residual",
    "singular_spectrum",
    "through_mixers",
    "trace",
]
