"""Pictures of molecules that notebooks display."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphslice.errors import InputError

if TYPE_CHECKING:
    from graphslice.analysis.formatting import Explanation
    from graphslice.inference.inputs import Columns
    from graphslice.inference.predictor import Predictor


@dataclass(frozen=True)
class Picture:
    """A picture as SVG and PNG, displayed by notebooks.

    Attributes:
        svg: the SVG document.
        png: the PNG file, as bytes.
    """

    svg: str
    png: bytes

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the picture to a file.

        Args:
            path: a file name that ends in ``.svg`` or ``.png``.

        Raises:
            InputError: if the suffix is another one, or the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise InputError(f"a picture is written as .svg or .png, not as {path.name}")
        try:
            path.write_bytes(self.png if path.suffix == ".png" else self.svg.encode())
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    def __repr__(self) -> str:
        return "Picture(displayed in a notebook; save('atoms.svg') writes it)"


def explain_molecule(
    model: Predictor, smiles: str, target: str | None, orders: int, columns: Columns | None
) -> tuple[Explanation, Picture]:
    """Return the atom contributions to one target, and their picture; arguments and errors as in :meth:`Model.draw`."""
    from graphslice.analysis.atom_maps import draw_atoms
    from graphslice.analysis.formatting import explain_targets, match_target

    if not isinstance(smiles, str):
        raise InputError(f"draw takes one SMILES, not {type(smiles).__name__}")
    index = match_target(target, model.targets)
    explanation = explain_targets(model, smiles, orders=orders, columns=columns)[index]
    return explanation, Picture(*draw_atoms(smiles, explanation))
