"""Mixers: token-mixing layers that replace self-attention, registered by name.

A mixer maps ``(x [B, N, C], context)`` to ``[B, N, C]``. Importing a module of this package registers its classes;
:func:`build_mixer` creates an instance by name.
"""

from graphslice.nn.mixers.base import MIXERS, Mixer, build_mixer, check_mixer, mixer_class, register
from graphslice.nn.mixers.csp import CSP
from graphslice.nn.mixers.projections import Fourier, Galerkin
from graphslice.nn.mixers.quantile import MapOnly, SliceQuantile
from graphslice.nn.mixers.slice import SliceAscend, SliceInterleave, SliceMax, SliceReleased
from graphslice.nn.mixers.softmax import SoftmaxAttention
from graphslice.nn.mixers.user_mixers import check_user_mixer, import_user_mixers, is_user_mixer

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
    "check_user_mixer",
    "is_user_mixer",
    "mixer_class",
    "register",
]

import_user_mixers()
