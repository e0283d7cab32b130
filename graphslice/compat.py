"""Renamed keys of earlier versions, so that their run directories and configurations can still be read."""

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
# 0.1: mixer -> old setting -> new setting, and (mixer, new setting) -> old value -> new value.
_SETTINGS = {
    "slice-quantile": {"share": "keep_fraction", "told": "source", "apart": "split_by_head"}  # codespell:ignore told
}
_VALUES = {("slice-quantile", "source"): {"map": "aggregated"}}
# 0.1: names of weights.
_WEIGHTS = (
    (re.compile(r"(blocks\.\d+\.ffn)\.0\."), r"\1.expand."),
    (re.compile(r"(blocks\.\d+\.ffn)\.2\."), r"\1.contract."),
    (re.compile(r"(blocks\.\d+\.mixer)\.places$"), r"\1.q_logits"),
)


def migrate_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the nested values of a configuration with the current names of all keys."""
    migrated = dict(values)
    for section, names in _KEYS.items():
        if isinstance(migrated.get(section), dict):
            migrated[section] = _rename_keys(migrated[section], names)
    model = migrated.get("model")
    if isinstance(model, dict) and isinstance(model.get("mixer_settings"), dict):
        mixer = model.get("mixer", "")
        settings = migrate_settings(mixer if isinstance(mixer, str) else "", model["mixer_settings"])
        migrated["model"] = {**model, "mixer_settings": settings}
    return migrated


def migrate_settings(mixer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a mixer with their current names and values."""
    migrated = _rename_keys(settings, _SETTINGS.get(mixer, {}))
    for name, value in migrated.items():
        if isinstance(value, str):
            migrated[name] = _VALUES.get((mixer, name), {}).get(value, value)
    return migrated


def migrate_weight_name(name: str) -> str:
    """Return the current name of a weight."""
    for pattern, new in _WEIGHTS:
        name = pattern.sub(new, name)
    return name


def migrate_training_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of ``last.ckpt`` with the current keys; in 0.1, Lightning wrote it."""
    if "training" in checkpoint:
        return checkpoint
    states = checkpoint.get("callbacks", {})
    waited = [state["wait_count"] for name, state in states.items() if name.startswith("EarlyStopping{")]
    training = {
        "step": checkpoint["global_step"],
        "seconds": states.get("Clock", {}).get("seconds", 0.0),
        "validated": checkpoint["global_step"],
        "waited": waited[0] if waited else 0,
    }
    return {**checkpoint, "training": training, "precision": checkpoint.get("MixedPrecision", {})}


def _rename_keys(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    for old, new in names.items():
        if old in values and new in values:
            raise InputError(f"{shown(old)} is the former name of {shown(new)}: give only one of them")
    return {names.get(key, key): value for key, value in values.items()}
