"""The modules that commands import for predictions, without scipy.

numba imports scipy, which takes longer than numba itself, to find the BLAS that ``np.dot`` in compiled code would call.
No kernel here calls it. The commands that import this module run no code of users, which might.
"""

from __future__ import annotations

import sys
from importlib import import_module

if "scipy" not in sys.modules:
    sys.modules["scipy"] = None  # type: ignore[assignment]  # marks it as not installed
    try:
        import_module("numba.np.arraymath")  # looks for the BLAS
    finally:
        del sys.modules["scipy"]
import_module("graphslice.inference.embedding")  # imports all others
