"""Reading of presets and YAML configuration files, and validation of their keys and types."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from graphslice.errors import InputError, check_choice, check_known, check_number, check_positive, nearest, shown
from graphslice.system.machine import CONFIGS

#: The names of the presets, each a YAML file in ``configs``.
PRESETS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))

# String options with the values on and off, which YAML 1.1 reads as booleans if they are not quoted.
_ON_OFF_KEYS = ("baselines", "compile", "refit")


@dataclasses.dataclass  # since jsonargparse reads a class as options only if its bases are dataclasses too
class Section:
    """Base of the dataclasses of a configuration, which accepts no attribute that is not one of its settings."""

    def __setattr__(self, name: str, value: Any) -> None:
        check_known("setting", name, type(self).__dataclass_fields__, type(self).__name__)
        super().__setattr__(name, value)

    @property
    def _section(self) -> str:
        """Name of the section in a configuration, such as ``data``."""
        return type(self).__name__.removesuffix("Config").lower()

    def _check_choices(self, **choices: Sequence[str | None]) -> None:
        for name, allowed in choices.items():
            check_choice(f"{self._section}.{name}", getattr(self, name), allowed)

    def _check_least(self, least: float, *names: str) -> None:
        for name in names:
            check_number(f"{self._section}.{name}", getattr(self, name), least)

    def _check_positive(self, *names: str) -> None:
        for name in names:
            check_positive(f"{self._section}.{name}", getattr(self, name))

    def _check_form(self, **forms: str) -> None:
        """Check settings by a form such as ``auto|N``, where N stands for a number."""
        for name, form in forms.items():
            if not re.fullmatch(form.replace("N", "[0-9]{1,6}"), getattr(self, name)):
                wanted = " or ".join("a number" if part == "N" else part for part in form.split("|"))
                raise InputError(f"{self._section}.{name} must be {wanted}, not {shown(getattr(self, name))}")


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return what each setting of a section means: the comment at its line, or the text below it."""
    setting = r'^    (\w+): [^#\n]+?(?:  # (.+)|\n    """((?:.|\n)+?)""")$'
    found = re.findall(setting, inspect.getsource(kind), re.MULTILINE)
    return {name: " ".join((comment or text).split()).replace("``", "") for name, comment, text in found}


def read_preset(name: str) -> dict[str, Any]:
    """Read a preset, and the one that its key ``preset`` names, as nested values; raises :class:`InputError` if it does
    not exist."""
    check_choice("the preset", name, PRESETS)
    values = read_yaml(CONFIGS / f"{name}.yaml")
    base = values.pop("preset", None)
    return merge_sections(read_preset(base), values) if base else values


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML configuration file as nested values; raises :class:`InputError` if it cannot be read."""
    try:
        values = _load_yaml(Path(path).read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError("expected sections such as model: and trainer:")
    except Exception as error:  # PyYAML raises many types of errors for tags that do not match their values
        raise InputError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    return values


def parse_value(text: str) -> Any:
    """Parse the text of an option as YAML: a number, a list, a boolean, or the text itself."""
    try:
        return _load_yaml(text)
    except Exception:  # as in :func:`read_yaml`
        raise InputError(f"cannot read the value {shown(text)}: expected a number, a word or a list") from None


def _load_yaml(text: str) -> Any:
    """Parse YAML without aliases, by which a small file of a stranger's model can hold exponentially many values."""
    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
        raise ValueError("it has aliases, such as *name: repeat the values in their place")
    return yaml.safe_load(text)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by section, of which some are given as ``{"data.task": "binary"}``."""
    sections: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = str(key).partition(".")
        sections = merge_sections(sections, {section: {name: value}} if dot else {key: value})
    return sections


def merge_sections(base: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Override nested values, key by key within a section."""
    merged = dict(base)
    for section, values in overrides.items():
        merged[section] = {**merged.get(section, {}), **values} if isinstance(values, dict) else values
    return merged


def flattened(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all sections by name, such as ``trainer.seed``."""
    flat: dict[str, Any] = {}
    for section, values in sections.items():
        flat |= (
            {f"{section}.{key}": value for key, value in values.items()}
            if isinstance(values, dict)
            else {section: values}
        )
    return flat


def check_same_settings(saved: dict[str, Any], wanted: dict[str, Any], folder: Path, what: str) -> None:
    """Raise :class:`InputError` if the settings with which a run or a search (``what``) was started in a folder differ
    from those that are given."""
    # The fingerprint is last, since a difference in another option gives a more specific message.
    for name in sorted(saved | wanted, key=lambda name: name == "data.fingerprint"):
        if saved.get(name) != wanted.get(name):
            message = f"{folder} holds a {what} with {name} {saved.get(name)}, not {wanted.get(name)}"
            if name == "data.fingerprint":
                message = f"the data of the {what} in {folder} has changed"
            raise InputError(f"{message}: choose another --out")


def check_keys(values: dict[str, Any], kind: type, where: str = "") -> None:
    """Raise :class:`InputError` for the first key that is not a field of the dataclass ``kind``."""
    hints = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            path = shown(where + (key if isinstance(key, str) else shown(key)))
            sections = (name for name, each in hints.items() if key in getattr(each, "__dataclass_fields__", ()))
            hint = next((f" (did you mean {name}.{key}?)" for name in sections), nearest(key, hints))
            raise InputError(f"unknown configuration key {path}{hint}")
        if dataclasses.is_dataclass(hints[key]):
            check_type(f"the section {key}", value, (dict,))
            check_keys(value, hints[key], f"{where}{key}.")


def _converted(key: str, value: Any, allowed: tuple[type, ...]) -> Any:
    """Convert a value to an allowed type where YAML or Python has another one for it."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return ("on" if value else "off") if key in _ON_OFF_KEYS else value
    if float in allowed and isinstance(value, int | str):
        with suppress(ValueError, OverflowError):
            return float(value)  # YAML 1.1 reads 1e-3 as a string
    return str(value) if str in allowed and isinstance(value, int) else value  # such as devices: 2


_TYPE_NAMES = {type(None): "empty", dict: "keys and values"}


def check_type(name: str, value: Any, allowed: tuple[type, ...]) -> None:
    """Raise :class:`InputError` for a value of another type than those allowed."""
    if type(value) not in allowed:
        names = " or ".join(_TYPE_NAMES.get(each, each.__name__) for each in allowed)
        raise InputError(f"{name} must be {names}, not {shown(value)}")


def parse_section(kind: type, name: str, values: dict[str, Any]) -> Any:
    """Build the dataclass of a configuration section; raise :class:`InputError` for a value of the wrong type."""
    hints, converted = typing.get_type_hints(kind), {}
    for key, value in values.items():
        allowed = typing.get_args(hints[key]) or (hints[key],)
        converted[key] = _converted(key, value, allowed)
        check_type(f"{name}.{key}", converted[key], allowed)
    return kind(**converted)
