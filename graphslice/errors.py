"""Errors in the user's input, and helpers for their messages."""

from __future__ import annotations

import difflib
import math
import os
import reprlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Names are similar if this share of their letters agrees in order, as in two of the three letters of "yy" and "y".
_SIMILAR = 0.65


class InputError(ValueError):
    """Invalid user input. The message says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class EmptyTableError(InputError):
    """A table has no rows."""


class NoSmilesColumnError(InputError):
    """A table has no column that is known to hold the SMILES."""


_SHORTENED = reprlib.Repr()
_SHORTENED.maxlevel, _SHORTENED.maxstring, _SHORTENED.maxother, _SHORTENED.maxlong = 2, 80, 80, 40
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxdict = _SHORTENED.maxset = 4


def shown(value: object) -> str:
    """Return the ``repr`` of a user's value for a message, shortened if it is long."""
    try:
        return _SHORTENED.repr(value)
    except ValueError:  # of Python, for an integer of thousands of digits
        return f"<{type(value).__name__}>"


def check_number(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    """Raise :class:`InputError` for a number outside of a range, or nan; None is allowed."""
    if value is not None and not least <= value <= most:
        wanted = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise InputError(f"{name} must be {wanted}, not {value}")


def check_positive(name: str, value: float | None) -> None:
    """Raise :class:`InputError` for a number that is not above 0; None is allowed."""
    if value is not None and not 0 < value < math.inf:
        raise InputError(f"{name} must be more than 0, not {value}")


def check_choice(name: str, value: object, choices: Iterable[str | None]) -> None:
    """Raise :class:`InputError` for a value that is none of the choices, of which None is not listed."""
    if value not in (choices := list(choices)):
        *others, last = known = [choice for choice in choices if choice is not None]
        choice = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"{name} must be {choice}, not {shown(value)}{nearest(value, known)}")


def check_known(kind: str, name: object, known: Iterable[str], owner: object = None) -> None:
    """Raise :class:`InputError` for a name that is none of the known ones, of all or of an ``owner``."""
    if name not in (known := list(known)):
        what = f"unknown {kind}" if owner is None else f"{owner} has no {kind}"
        raise InputError(f"{what} {shown(name)}{nearest(name, known)}: choose from {quoted_list(known)}")


def check_file(path: Path, what: str = "file") -> None:
    """Raise :class:`InputError` if there is no such file."""
    if not path.is_file():
        missing = f"no {what} at {path}{nearest_path(path)}"
        raise InputError(f"{path} is a folder, not a {what}" if path.is_dir() else missing)


def check_new(path: Path, overwrite: bool = False) -> None:
    """Raise :class:`InputError` if a file to write exists, and is not to be overwritten."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already: choose another name, or set overwrite")


def check_suffix(path: Path, suffixes: Iterable[str]) -> None:
    """Raise :class:`InputError` if the name of a file to write has no suffix of a known format."""
    if not path.name.lower().endswith(tuple(suffixes := list(suffixes))):
        raise InputError(f"cannot write {path}: its name must end in {', '.join(suffixes)}")


@contextmanager
def file_errors(action: str, path: object, *others: type[Exception]) -> Iterator[None]:
    """Context manager that replaces an OSError, or one of ``others``, by "cannot read PATH: reason"."""
    kinds: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        # Libraries replace the message of the system by a longer one.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else first_line(error)
        raise InputError(f"cannot {action} {path}: {reason}") from None


@contextmanager
def optional_packages(what: str, extra: str) -> Iterator[None]:
    """Context manager that replaces a failed import of a package by an :class:`InputError` that names the extra."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{what} needs the package {error.name}: pip install 'graphslice[{extra}]'") from None


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error from elsewhere, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def nearest(name: object, known: Iterable[str], quote: Callable[[str], str] = repr) -> str:
    """Return ``" (did you mean 'x'?)"``, or an empty string without a known name that is similar.

    The suggested name is the only one that contains ``name``, such as a header with its unit, else the most similar
    one, without regard to case.

    Args:
        name: the unknown name.
        known: known names.
        quote: formats the suggestion.
    """
    if not isinstance(name, str) or len(name) > 1_000:  # the comparison takes time
        return ""
    wanted, folded = name.casefold(), {one.casefold(): one for one in reversed(list(known))}
    match = [one for one in folded if wanted and wanted in one]
    if len(match) != 1:
        match = difflib.get_close_matches(wanted, folded, n=1, cutoff=_SIMILAR)
    return f" (did you mean {quote(folded[match[0]])}?)" if match else ""


def nearest_path(path: Path, known: Iterable[Path] | None = None) -> str:
    """Return the same with the path whose name is most similar, among ``known`` ones or those of the same folder. The
    suffix only decides between equal names: it would make short ones similar."""
    if known is None:
        known = path.parent.iterdir() if path.parent.is_dir() else ()
    paths = {one.stem: str(one) for one in sorted(known, key=lambda one: one.suffix == path.suffix)}
    return nearest(path.stem, paths, paths.__getitem__)


def shell_command(words: Sequence[str]) -> str:
    """Join words to a command that can be pasted into a shell of this system."""
    if sys.platform != "win32":
        return shlex.join(words)
    from subprocess import list2cmdline

    return list2cmdline(words)


def quoted_list(names: Iterable[object], most: int = 12, quote: Callable[[str], str] = repr) -> str:
    """Format names for a message: quoted, the first ``most`` of them, ``none`` if there are none."""
    quoted = [quote(str(name)) for name in names]
    return ", ".join(quoted[:most]) + (f" and {len(quoted) - most:,} more" if len(quoted) > most else "") or "none"


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``1 atom`` or ``2 atoms``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
