"""Cache of the compiled programs of models, in the cache directory of the user.

A program depends on the architecture, not on the weights. It is trusted, like the machine code that numba keeps with
it: a program from elsewhere, such as from a checkpoint or of another user, could read and write any memory.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import graphslice.program
from graphslice._version import __version__
from graphslice.config import ModelConfig
from graphslice.errors import InputError
from graphslice.program.run import programs_enabled
from graphslice.program.saved import SavedProgram
from graphslice.system.files import atomic_write
from graphslice.system.machine import default_cache

if TYPE_CHECKING:
    from graphslice.nn import GraphTransformer


def load_program(config: ModelConfig) -> SavedProgram | None:
    """Return the program of an architecture; None if none is in the cache."""
    if not programs_enabled():
        return None
    try:
        with _path(config).open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid not in (0, os.getuid()):
                return None
            program, buffers, shapes = pickle.load(file)
        return SavedProgram(program, buffers, config.max_path, shapes)
    except Exception:  # none, or a damaged one, of which unpickling raises errors of many types
        return None


def save_program(config: ModelConfig, model: GraphTransformer) -> None:
    """Write the program of a model in evaluation mode to the cache, if it has one and the cache is writable; not that
    of a user's mixer, since its code may change while the configuration stays the same."""
    from graphslice.nn.mixers import is_user_mixer
    from graphslice.nn.traced_model import inference_program

    if (
        is_user_mixer(config.mixer)
        or not programs_enabled()
        or _path(config).exists()
        or (found := inference_program(model)) is None
    ):
        return
    with suppress(OSError, InputError):  # the second is that of atomic_write
        _path(config).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(_path(config)) as temporary:
            temporary.write_bytes(pickle.dumps(found))


def _path(config: ModelConfig) -> Path:
    key = hashlib.sha256(repr((config, _version())).encode()).hexdigest()[:24]
    return default_cache() / "programs" / f"{key}.pickle"


@lru_cache(1)
def _version() -> tuple:
    """Return what the instructions of a program depend on: the version, and the files that make and run programs."""
    package = Path(graphslice.program.__file__).parents[1]
    files = sorted(path for name in ("program", "ops", "nn") for path in (package / name).rglob("*.py"))
    stats = [path.stat() for path in files]
    return (__version__, sys.byteorder, [(stat.st_size, stat.st_mtime_ns) for stat in stats])
