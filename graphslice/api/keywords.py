"""Suggestions for misspelt keyword arguments of the Python interface."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from graphslice.config import RunConfig
from graphslice.errors import nearest

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


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
    for key, section in RunConfig().to_dict().items():
        if isinstance(section, dict) and name in section:
            return f": give config={{{key!r}: {{{name!r}: ...}}}}"
    return nearest(name, [one for one in known if one != "self"])
