"""Mixers: token-mixing layers that replace self-attention, registered by name.

A mixer maps ``(x [B, N, C], context)`` to ``[B, N, C]``. Importing a module of this package registers its classes;
:func:`build_mixer` creates an instance by name.
"""

from graphslice.nn.mixers import attention as _attention  # noqa: F401
from graphslice.nn.mixers import csp as _csp  # noqa: F401
from graphslice.nn.mixers import slice as _slice  # noqa: F401
from graphslice.nn.mixers.base import MIXERS, Mixer, build_mixer, check_mixer, mixer_class, register
from graphslice.nn.mixers.user_mixers import check_user_mixer, import_user_mixers, is_user_mixer

__all__ = [
    "MIXERS",
    "Mixer",
    "build_mixer",
    "check_mixer",
    "check_user_mixer",
    "is_user_mixer",
    "mixer_class",
    "register",
]

import_user_mixers()
