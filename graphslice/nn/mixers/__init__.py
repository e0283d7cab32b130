"""The mixers: what stands where attention stood. One class a mixer, found by name.

A mixer maps ``(x [B, N, C], context)`` to ``[B, N, C]``. Importing a file of this folder
registers its classes; :func:`build_mixer` makes one by name.
"""

from graphslice.nn.mixers.base import MIXERS, Mixer, build_mixer, check_mixer, mixer_class, register
from graphslice.nn.mixers.csp import CSP
from graphslice.nn.mixers.projections import Fourier, Galerkin
from graphslice.nn.mixers.quantile import MapOnly, SliceQuantile
from graphslice.nn.mixers.slice import SliceAscend, SliceInterleave, SliceMax, SliceReleased
from graphslice.nn.mixers.softmax import SoftmaxAttention

__all__ = [
    "CSP",
    "MIXERS",
    "Fourier",
    "Galerkin",
    "MapOnly",
    "Mixer",
    "SliceAscend",
    "SliceInterleave",
    "SliceMax",
    "SliceQuantile",
    "SliceReleased",
    "SoftmaxAttention",
    "build_mixer",
    "check_mixer",
    "mixer_class",
    "register",
]
