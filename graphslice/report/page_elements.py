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
    """A table."""

    caption: str  # with units
    head: Sequence[str]  # column titles; the first column names the rows
    rows: Sequence[Sequence[str]]
    folded: bool = False  # collapsed until the caption is clicked


@dataclass(frozen=True)
class Card:
    """A molecule with facts about it."""

    svg: str | None  # None if there is no drawing
    smiles: str
    title: str
    facts: Sequence[tuple[str, str]]  # name and value
    undrawn: str = "not drawn"  # shown in place of a missing drawing
    compared: Card | None = None  # another molecule, shown with this one


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
