"""What a page is made of; ``templates/report.html`` says how each looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from markupsafe import Markup


@dataclass(frozen=True)
class Text:
    """A paragraph; a note is set apart."""

    text: str
    note: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Figure:
    """A drawing, or two that belong together, and what is written below."""

    svgs: Sequence[Markup]
    caption: str
    title: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures beside each other, where the page is wide enough."""

    figures: Sequence[Figure]
    kind: str = "figures"


@dataclass(frozen=True)
class Table:
    """A table; a folded one opens when its caption is clicked.

    Attributes:
        caption: what it shows, with units.
        head: titles of the columns; the first names the rows.
        rows: a text a cell.
        folded: whether it is shown only when asked for.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Card:
    """A molecule: its drawing, or None and why there is none, its SMILES, and pairs of what is said of it."""

    svg: Markup | None
    smiles: str
    title: str
    facts: Sequence[tuple[str, str]]
    undrawn: str = "not drawn"


@dataclass(frozen=True)
class Cards:
    """Molecules beside each other."""

    cards: Sequence[Card]
    kind: str = "cards"


@dataclass(frozen=True)
class Code:
    """A text that is copied as it stands: one click selects it; with a summary it is folded."""

    text: str
    label: str
    summary: str = ""
    kind: str = "code"


@dataclass(frozen=True)
class Heading:
    """The title of a part of a section."""

    text: str
    kind: str = "heading"


Part: TypeAlias = Text | Figures | Table | Cards | Code | Heading


@dataclass
class Section:
    """A part of the page that the table of contents names."""

    id: str
    title: str
    parts: list[Part] = field(default_factory=list)
