"""The one kind of error that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used: one sentence saying what, where and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class EmptyTableError(InputError):
    """A table has no rows."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known name most like ``name``, or nothing."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""
