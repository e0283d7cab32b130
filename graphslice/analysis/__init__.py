"""What a model does inside: contributions of atoms, spectra, residuals and maps."""

from graphslice.analysis.attribution import Attribution, attribute, attribute_graph
from graphslice.analysis.spectra import rank_one_residual, singular_spectrum
from graphslice.analysis.trace import Trace, trace

__all__ = [
    "Attribution",
    "Trace",
    "attribute",
    "attribute_graph",
    "rank_one_residual",
    "singular_spectrum",
    "trace",
]
