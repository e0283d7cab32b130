"""Keyword arguments of the Python interface: suggestions for misspelt ones, and their names in messages."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from rich.console import Console

from graphslice.config import RunConfig
from graphslice.errors import InputError, nearest

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Keywords whose options have other names.
_KEYWORDS = {"dataset": "data", "smiles_column": "smiles", "weight_column": "weights"}
# An option in a message; a command with its first option stays as it is.
_OPTION = re.compile(r"graphslice [\w-]+ --[\w-]+|(?<![\w-])--([a-z][\w-]*(?:\.\w+)*)")


def suggest_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function so that an unknown keyword argument raises a TypeError with a suggestion.

    Args:
        function: a function with a parameter ``config``, which takes the sections of a configuration.
    """
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        for name in keywords:
            if name not in known:
                raise TypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}{_suggestion(name, known)}"
                )
        return function(*arguments, **keywords)

    return checked


def _suggestion(name: str, known: list[str]) -> str:
    """Return the setting of this name in a configuration, else the most similar keyword."""
    if (key := _section_of(name)) is not None:
        return f": give config={{{key!r}: {{{name!r}: ...}}}}"
    return nearest(name, [one for one in known if one != "self"])


def _section_of(name: str) -> str | None:
    """Return the section of a configuration that has a setting of this name; None if there is none."""
    sections = RunConfig().to_dict().items()
    return next((key for key, section in sections if isinstance(section, dict) and name in section), None)


def name_keywords(message: str, known: Callable) -> str:
    """Name the command-line options in a message as keywords of a function, or as settings of a configuration.

    ``give --task multiclass`` becomes ``give data.task multiclass``, and ``--smiles-column`` becomes ``smiles``.

    Args:
        message: a message that may name options.
        known: the function.
    """
    keywords = inspect.signature(known).parameters

    def named(option: re.Match) -> str:
        if option[1] is None or "." in option[1]:
            return option[1] or option[0]
        name = option[1].replace("-", "_")
        if (keyword := _KEYWORDS.get(name, name)) in keywords:
            return keyword
        section = _section_of(name)
        return option[0] if section is None else f"{section}.{name}"

    return _OPTION.sub(named, message)


def errors_name_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorate a function so that its errors in the user's input name its keywords, not command-line options."""

    @functools.wraps(function)
    def renamed(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        try:
            return function(*arguments, **keywords)
        except InputError as error:
            error.args = tuple(name_keywords(str(one), function) for one in error.args)
            raise

    return renamed


class KeywordConsole(Console):
    """A console whose texts name the keywords of a function, as in :func:`name_keywords`.

    Args:
        known: the function.
        settings: those of :class:`rich.console.Console`.
    """

    def __init__(self, known: Callable, **settings: Any) -> None:
        super().__init__(**settings)
        self._known = known

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print objects as :meth:`rich.console.Console.print` does, texts with keywords in place of options."""
        super().print(*(name_keywords(o, self._known) if isinstance(o, str) else o for o in objects), **settings)
