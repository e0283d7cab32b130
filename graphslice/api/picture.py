"""Pictures that a notebook shows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.inference.inputs import Columns
    from graphslice.inference.predictor import Predictor


@dataclass(frozen=True)
class Picture:
    """A picture, which shows itself in a notebook.

    Attributes:
        svg: its text.
        png: its bytes.
    """

    svg: str
    png: bytes

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write it to a file of either kind; raises InputError for another one, or where that cannot be done."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise InputError(f"a picture is written as .svg or .png, not as {path.name}")
        try:
            path.write_bytes(self.png if path.suffix == ".png" else self.svg.encode())
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    def __repr__(self) -> str:
        return "Picture(a notebook shows it; save('atoms.svg') writes it)"


def draw_attributions(
    model: Predictor, smiles: str, target: str | None, orders: int, columns: Columns | None
) -> Picture:
    """What each atom adds, drawn on the molecule: see :meth:`Model.draw`."""
    from graphslice.analysis.atom_maps import draw_atoms
    from graphslice.analysis.attribution import attribute
    from graphslice.analysis.formatting import explain_target, match_target

    if not isinstance(smiles, str):
        raise InputError(f"draw shows one SMILES, not {type(smiles).__name__}")
    at = match_target(target, model.targets)
    found = attribute(model, smiles, orders=orders, columns=columns)
    (answers,) = model.predict(smiles, columns=columns)
    explanation = explain_target(found, answers, model.tasks, at, len(model.models))
    with tempfile.TemporaryDirectory() as folder:
        files = {path.suffix: path.read_bytes() for path in draw_atoms(smiles, explanation, Path(folder) / "atoms")}
    return Picture(files[".svg"].decode(), files[".png"])
