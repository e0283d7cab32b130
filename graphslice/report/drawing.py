"""Draw molecules as SVG."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from graphslice.chem.parse import MoleculeError, parse_molecule, rdkit_messages_blocked
from graphslice.errors import InputError

# Width and height of a drawing in pixels, about as large as the page shows it.
_WIDTH, _HEIGHT = 220, 165
# Larger molecules are not drawn: the drawing would be slow and illegible.
_MAX_ATOMS = 120


def drawing_module() -> ModuleType:
    """Import ``rdMolDraw2D``, the only part of RDKit that needs system libraries, which containers often lack; raises
    :class:`InputError` if one is missing."""
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        raise InputError(
            f"RDKit cannot draw molecules here ({error}): install the library (on Debian and Ubuntu: apt-get install "
            "libxrender1 libxext6 libexpat1)"
        ) from None
    return rdMolDraw2D


def draw_molecule(smiles: str) -> str | None:
    """Draw a molecule as SVG; None if the SMILES is invalid, if it is too large or cannot be drawn, or if
    :func:`drawing_module` fails."""
    try:
        module = drawing_module()
        with rdkit_messages_blocked():
            mol = parse_molecule(smiles, _MAX_ATOMS, keep_atom_maps=True)
    except (MoleculeError, InputError):
        return None
    drawer = module.MolDraw2DSVG(_WIDTH, _HEIGHT)
    options: Any = drawer.drawOptions()
    options.fixedBondLength, options.bondLineWidth, options.padding = 22, 1.3, 0.03
    with rdkit_messages_blocked():
        try:
            module.PrepareAndDrawMolecule(drawer, mol)
        except (RuntimeError, ValueError):  # some metal complexes have no Kekulé structure
            return None
    drawer.FinishDrawing()
    svg = drawer.GetDrawingText()
    return svg[svg.index("<svg") :]
