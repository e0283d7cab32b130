"""Elements of a report page; ``templates/report.html`` renders them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from markupsafe import Markup


def image(svg: str, label: str, kind: str) -> Markup:
    """Return an image of the page; ``label``: its accessible name, ``kind``: its class."""
    data = base64.b64encode(svg.encode(errors="replace")).decode()
    return Markup('<img class="{}" alt="{}" src="data:image/svg+xml;base64,{}">').format(kind, label, data)


@dataclass(frozen=True)
class Text:
    """A paragraph; ``note``: set apart as a remark."""

    text: str
    note: bool = False


@dataclass(frozen=True)
class Figure:
    """A plot as SVG, with a title and a caption."""

    svg: str
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures, side by side if the page is wide enough."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what the table shows, with units.
        head: column titles; the first column names the rows.
        rows: one text per cell.
        folded: if True, the table is collapsed until its caption is clicked.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """A molecule with facts about it.

    Attributes:
        svg: drawing as SVG; None if there is none.
        smiles: SMILES of the molecule.
        title: title of the card.
        facts: pairs of name and value.
        undrawn: text shown in place of a missing drawing.
        compared: card of another molecule, shown with this one, or None.
    """

    svg: str | None
    smiles: str
    title: str
    facts: Sequence[tuple[str, str]]
    undrawn: str = "not drawn"
    compared: Card | None = None


@dataclass(frozen=True)
class Cards:
    """Molecules, side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Code:
    """Preformatted text that one click selects; it is collapsed if it has a summary."""

    text: str
    label: str
    summary: str = ""


@dataclass(frozen=True)
class Heading:
    """Title of a subsection."""

    text: str


#: Elements of a section; the template has a branch for the name of each.
Part: TypeAlias = Text | Figures | Table | Cards | Code | Heading


@dataclass
class Section:
    """A section of the page, listed in the table of contents."""

    id: str
    title: str
    parts: list[Part] = field(default_factory=list)
