"""Mixers outside the package: the files that register them, and a check before training."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from graphslice.errors import InputError, check_file
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers.base import build_mixer, is_packaged, mixer_class

#: Environment variable with the files to import, separated as in ``PATH``. Child processes inherit it.
VARIABLE = "GRAPHSLICE_MIXERS"
_TOLERANCE = 1e-4


def import_user_mixers() -> None:
    """Import the files that :data:`VARIABLE` names, which register their mixers; raises :class:`InputError` if one
    does not exist, is not Python source, or fails."""
    for text in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        check_file(Path(text), f"file of {VARIABLE}")
        spec = importlib.util.spec_from_file_location(f"graphslice_user_{Path(text).stem}", text)
        if spec is None or spec.loader is None:
            raise InputError(f"{VARIABLE} names {text}, which is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"{VARIABLE} names {text}, which cannot be imported: {_describe(error, text)}") from error


def _describe(error: Exception, file: str) -> str:
    """Describe an error in one line, with the last line of the user's file that it passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = "" if isinstance(error, SyntaxError) or not lines else f" (line {lines[-1]})"
    return f"{type(error).__name__}: {error}{where}"


def is_user_mixer(name: str) -> bool:
    """True if a mixer is defined outside the package."""
    return not is_packaged(mixer_class(name))


def check_user_mixer(name: str, dim: int, heads: int, settings: dict[str, Any] | None = None) -> None:
    """Raise :class:`InputError` for a mixer that is defined outside the package and fails, whose output has another
    shape than its input or is not finite, or depends on the padding or on other samples."""
    if not is_user_mixer(name):
        return
    module = mixer_class(name).__module__
    file = getattr(sys.modules.get(module), "__file__", None) or module  # a notebook has no file
    try:
        _check_output(name, dim, heads, settings or {})
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the mixer {name} of {file} fails: {_describe(error, file)}") from error


def _check_output(name: str, dim: int, heads: int, settings: dict[str, Any]) -> None:
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        mixer = build_mixer(name, dim, heads, **settings)
        x, bias = torch.randn(3, 7, dim), torch.randn(3, heads, 7, 7)
        lengths = torch.tensor([7, 4, 1])

        def output(first: int, last: int, rows: int) -> Any:
            context = AttentionContext.from_bias(lengths[first:last], bias[first:last, :, :rows, :rows], mixer.reads)
            return mixer(x[first:last, :rows], context)

        output(0, 3, 7)  # in training mode, which may take another path
        mixer.eval()
        batch = output(0, 3, 7)
        if not isinstance(batch, torch.Tensor) or batch.shape != x.shape:
            found = list(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
            raise InputError(f"mixer {name} returns {found} for x of shape {list(x.shape)}: it must keep the shape")
        if not batch.isfinite().all():  # nan in the padding makes the gradients nan
            raise InputError(f"mixer {name} returns numbers that are not finite, if only in the padding")
        for sample, length in enumerate(lengths.tolist()):
            alone = output(sample, sample + 1, length)[0]
            if not torch.allclose(alone, batch[sample, :length], rtol=_TOLERANCE, atol=_TOLERANCE):
                raise InputError(
                    f"the output of mixer {name} for a molecule depends on its batch: it must mask the padding "
                    "(context.mask, context.lengths) and must not mix molecules"
                )
