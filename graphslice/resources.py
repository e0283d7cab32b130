"""The files that come with the package: presets and the demo set.

A wheel carries them inside ``graphslice``; a checkout keeps them at its top.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def resource(folder: str) -> Path:
    """The folder ``configs`` or ``data`` of this installation."""
    packaged = _PACKAGE / "_files" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


CONFIGS = resource("configs")
DEMO_CSV = resource("data") / "demo.csv"
