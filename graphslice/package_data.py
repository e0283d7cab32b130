"""The files that come with the package: presets, models and the demo set.

A wheel carries them inside ``graphslice``; a checkout keeps them at its top.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def package_directory(folder: str) -> Path:
    """The folder ``configs`` or ``data`` of this installation."""
    packaged = _PACKAGE / "_files" / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


CONFIGS = package_directory("configs")
DEMO_CSV = package_directory("data") / "demo.csv"
#: The models that come with the package, by the names that stand in place of a run folder.
MODELS = {path.stem: path for path in sorted((_PACKAGE / "weights").glob("*.ckpt"))}

#: The model that comes with the package, from which small tables start. Its shape is that of the preset of this name.
PRETRAINED_MODEL = "small"


def is_packaged_model(path: str | Path) -> bool:
    """Whether it is the name of a model that comes with the package, and of no file or folder here."""
    return str(path) in MODELS and not Path(path).exists()
