"""Draw molecules as SVG for light and dark pages; Bemis-Murcko scaffolds."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from markupsafe import Markup, escape
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from graphslice.chem.parse import MoleculeError, parse_molecule
from graphslice.chem.quiet import rdkit_messages_blocked
from graphslice.errors import InputError

# Width and height of a drawing in pixels, about as large as the page shows it.
_WIDTH, _HEIGHT = 220, 165
# Larger molecules are not drawn: the drawing would be slow and illegible.
_MAX_ATOMS = 120

# Colours of the elements in RDKit's drawings, and the CSS variables that replace them (light and dark variants).
_COLOURS = {
    "#000000": "ink",
    "#0000FF": "n",
    "#FF0000": "o",
    "#CCCC00": "s",
    "#FF7F00": "p",
    "#33CCCC": "f",
    "#00CC00": "cl",
    "#7F4C19": "br",
    "#A01EEF": "i",
}


def drawing_module() -> ModuleType:
    """Import ``rdMolDraw2D``, the only part of RDKit that needs system libraries, which containers often lack.

    Raises:
        InputError: if a library is missing.
    """
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        raise InputError(
            f"RDKit cannot draw molecules here ({error}): install the library (on Debian and Ubuntu: apt-get install "
            "libxrender1 libxext6 libexpat1)"
        ) from None
    return rdMolDraw2D


def draw_molecule(smiles: str, label: str) -> Markup | None:
    """Draw a molecule; ``label``: accessible name for screen readers.

    Returns:
        An SVG element; None if the SMILES is invalid, if the molecule is too large or cannot be drawn, or if
        :func:`drawing_module` fails.
    """
    try:
        module = drawing_module()
        with rdkit_messages_blocked():
            mol = parse_molecule(smiles, _MAX_ATOMS, keep_atom_maps=True)
    except (MoleculeError, InputError):
        return None
    drawer = module.MolDraw2DSVG(_WIDTH, _HEIGHT)
    options: Any = drawer.drawOptions()
    options.clearBackground = False
    options.fixedBondLength, options.bondLineWidth, options.padding = 22, 1.3, 0.03
    with rdkit_messages_blocked():
        try:
            module.PrepareAndDrawMolecule(drawer, mol)
        except (RuntimeError, ValueError):  # some metal complexes have no Kekulé structure
            return None
    drawer.FinishDrawing()
    return _with_page_style(drawer.GetDrawingText(), label)


def _with_page_style(svg: str, label: str) -> Markup:
    """Strip RDKit's SVG of namespaces, and replace colours by the CSS variables of the page."""
    svg = svg[svg.index("<svg") :]
    svg = svg[svg.index(">") + 1 :]
    svg = re.sub(r"<!--.*?-->|<rect[^>]*>\s*</rect>", "", svg, flags=re.DOTALL)
    svg = re.sub(r" class='[^']*'", "", svg)
    for colour, name in _COLOURS.items():
        svg = svg.replace(f"stroke:{colour}", f"stroke:var(--atom-{name})")
        svg = re.sub(f" fill='{colour}'", f" style='fill:var(--atom-{name})'", svg)
    svg = re.sub(r"#[0-9A-F]{6}\b", "var(--atom-ink)", svg)  # other elements
    svg = svg.replace("fill-rule:evenodd;", "").replace("stroke-opacity:1", "").replace("stroke-linejoin:miter;", "")
    svg = re.sub(r"\s*\n\s*", "", svg)
    begin = f'<svg class="molecule" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
    return Markup(begin + svg)


def scaffold_of(smiles: str) -> str | None:
    """Compute the Bemis-Murcko scaffold of a SMILES (Bemis and Murcko 1996).

    Stereochemistry is removed so that enantiomers share a scaffold.

    Returns:
        SMILES of the scaffold, empty for acyclic molecules; None if the molecule or its scaffold cannot be computed.
    """
    with rdkit_messages_blocked():
        try:
            mol = Chem.MolFromSmiles(smiles)
            if mol is None:
                return None
            Chem.RemoveStereochemistry(mol)
            return Chem.MolToSmiles(MurckoScaffold.GetScaffoldForMol(mol))
        except (RuntimeError, ValueError):  # also undecodable bytes of a file
            return None
