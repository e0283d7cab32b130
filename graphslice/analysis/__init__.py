"""What a model does inside: spectra, residuals, maps and attributions."""

from graphslice.analysis.attribution import Attribution, attribute
from graphslice.analysis.spectra import rank_one_residual, singular_spectrum
from graphslice.analysis.trace import Trace, trace

__all__ = ["Attribution", "Trace", "attribute", "rank_one_residual", "singular_spectrum", "trace"]
