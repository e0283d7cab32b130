"""Names that were spelt otherwise once, so that run folders and configurations of then are still read."""

from __future__ import annotations

import re
from typing import Any

from graphslice.errors import InputError, shown

# 0.1: section -> old key -> new key.
_KEYS = {
    "model": {
        "degree_rows": "num_degrees",
        "distance_rows": "num_distances",
        "path_rows": "num_path_positions",
        "vocabulary": "embedding_layout",
    }
}
# 0.1: mixer -> old setting -> new setting, and of a new setting the old value -> the new one.
_SETTINGS = {"slice-quantile": {"share": "keep_fraction", "told": "source", "apart": "split_by_head"}}
_VALUES = {("slice-quantile", "source"): {"map": "aggregated"}}
# 0.1: names of weights.
_WEIGHTS = (
    (re.compile(r"(blocks\.\d+\.ffn)\.0\."), r"\1.expand."),
    (re.compile(r"(blocks\.\d+\.ffn)\.2\."), r"\1.contract."),
    (re.compile(r"(blocks\.\d+\.mixer)\.places$"), r"\1.q_logits"),
)


def migrate_config(values: dict[str, Any]) -> dict[str, Any]:
    """The nested values of a configuration, every key under its name of today."""
    found = dict(values)
    for section, names in _KEYS.items():
        if isinstance(found.get(section), dict):
            found[section] = _renamed(found[section], names)
    model = found.get("model")
    if isinstance(model, dict) and isinstance(model.get("mixer_settings"), dict):
        mixer = model.get("mixer", "")
        settings = migrate_settings(mixer if isinstance(mixer, str) else "", model["mixer_settings"])
        found["model"] = {**model, "mixer_settings": settings}
    return found


def migrate_settings(mixer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a mixer's own, under their names of today."""
    found = _renamed(settings, _SETTINGS.get(mixer, {}))
    for name, value in found.items():
        if isinstance(value, str):
            found[name] = _VALUES.get((mixer, name), {}).get(value, value)
    return found


def migrate_weight_name(name: str) -> str:
    """The name of a weight as the modules of today have it."""
    for pattern, new in _WEIGHTS:
        name = pattern.sub(new, name)
    return name


def _renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    for old, new in names.items():
        if old in values and new in values:
            raise InputError(f"{shown(old)} is the former name of {shown(new)}: give one of them")
    return {names.get(key, key): value for key, value in values.items()}
