"""Configuration from files: presets and YAML, as nested plain values, and their keys and types checked."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from graphslice.compat import migrate_config
from graphslice.errors import InputError, nearest, shown
from graphslice.package_data import CONFIGS

#: The names of the presets, each a YAML file in ``configs``.
PRESETS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))

# A configuration has far fewer.
_MOST_VALUES = 100_000

# Options of a text that may be on or off: without quotes YAML 1.1 takes these words for true and false.
_ON_OFF_KEYS = ("baselines", "compile")


def read_preset(name: str) -> dict[str, Any]:
    """The nested values of a preset.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset {shown(name)}{nearest(name, PRESETS)}: choose from {', '.join(PRESETS)}")
    return read_yaml(CONFIGS / f"{name}.yaml")


def read_yaml(path: Path) -> dict[str, Any]:
    """The nested values of a configuration file.

    Raises:
        InputError: if it is missing, no YAML or not a mapping.
    """
    try:
        values = _load_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration {path}: {error.strerror}") from None
    except InputError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    except Exception:  # PyYAML has errors of its own, and many more of tags that do not fit their values
        raise InputError(f"{path} is not a YAML file") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no configuration: expected sections such as model: and trainer:")
    return migrate_config(values)


def parse_value(text: str) -> Any:
    """The value that an option's text stands for, as YAML reads it: a number, a list, true, or the text itself.

    Raises:
        InputError: if it begins what it does not end.
    """
    try:
        return _load_yaml(text)
    except InputError:
        raise
    except Exception:  # as of :func:`read_yaml`
        raise InputError(f"cannot read the value {shown(text)}: it is no number, word or list") from None


def _load_yaml(text: str) -> Any:
    """The values of a YAML text.

    Raises:
        InputError: if aliases make them too many, or endless.
        Exception: if it is no YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if _count(node, {}) > _MOST_VALUES:
            raise InputError(f"it holds more than {_MOST_VALUES:,} values, each alias counted as what it stands for")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node | None, known: dict[int, float]) -> float:
    """The number of values of a node, each alias counted as what it stands for; infinite where one holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = itertools.chain(*children) if isinstance(node, yaml.MappingNode) else children
        known[id(node)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(node)]


def merge_sections(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others in their place, key by key within a section."""
    merged = dict(base)
    for section, values in more.items():
        merged[section] = {**merged.get(section, {}), **values} if isinstance(values, dict) else values
    return merged


def check_keys(values: dict[str, Any], kind: type, where: str = "") -> None:
    """Raise :class:`InputError` for the first key that ``kind`` has no field for."""
    hints = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            named = shown(where + (key if isinstance(key, str) else shown(key)))
            raise InputError(f"unknown configuration key {named}{nearest(key, hints)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise InputError(f"the configuration section {shown(key)} must hold keys and values")
            check_keys(value, hints[key], f"{where}{key}.")


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_python_scalar(value: Any) -> Any:
    """A number of NumPy as one of Python, which YAML can write; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def parse_section(kind: type, name: str, values: dict[str, Any]) -> Any:
    """A dataclass of a section's values; raises :class:`InputError` for one of the wrong type."""
    hints = typing.get_type_hints(kind)
    values = {key: to_python_scalar(value) for key, value in values.items()}
    for key, value in values.items():
        allowed = typing.get_args(hints[key]) or (hints[key],)
        if isinstance(value, int) and abs(value) >= 2**1023:
            raise InputError(f"{name}.{key} is too large a number")
        if float in allowed and isinstance(value, int) and not isinstance(value, bool):
            values = {**values, key: float(value)}
        elif float in allowed and isinstance(value, str) and _is_float(value):
            values = {**values, key: float(value)}  # YAML 1.1 takes 1e-3 for a text
        elif str in allowed and isinstance(value, int) and not isinstance(value, bool):
            values = {**values, key: str(value)}  # devices: 2
        elif key in _ON_OFF_KEYS and isinstance(value, bool):
            values = {**values, key: "on" if value else "off"}
        elif type(value) not in allowed:
            names = " or ".join("empty" if t is type(None) else t.__name__ for t in allowed)
            raise InputError(f"{name}.{key} must be {names}, not {shown(value)}")
    return kind(**values)
