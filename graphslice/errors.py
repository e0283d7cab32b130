"""The one kind of error that a user can act on."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Collection, Iterable
from typing import Any

# Longer ones are like no name.
_LONGEST_NAME = 1_000


class InputError(ValueError):
    """Something the user gave cannot be used: one sentence saying what, where and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class EmptyTableError(InputError):
    """A table has no rows."""


class _Shortened(reprlib.Repr):
    """A ``repr`` of bounded length, which looks at no more of a value than it shows."""

    def repr_instance(self, x: Any, level: int) -> str:
        """Other collections have no bounded ``repr``."""
        return f"<{type(x).__name__}>" if isinstance(x, Collection) else super().repr_instance(x, level)

    def repr_int(self, x: int, level: int) -> str:
        """Python writes no integer of more than some thousand digits."""
        return super().repr_int(x, level) if x.bit_length() < 10_000 else "<a number of thousands of digits>"


_SHORTENED = _Shortened()
_SHORTENED.maxlevel, _SHORTENED.maxstring, _SHORTENED.maxother, _SHORTENED.maxlong = 2, 80, 80, 40
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxdict = _SHORTENED.maxset = 4


def shown(value: object) -> str:
    """A value that a user gave, as a message shows it: its ``repr``, shortened where it is long.

    The length and the time are bounded, also for lists that hold one another many times.
    """
    return _SHORTENED.repr(value)


def nearest(name: object, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the known name most like ``name``, or nothing."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return ""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""
