"""Parts of documents that scripts fill in, between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_MARKED = re.compile(r"<!-- ([\w: -]+) -->(\n?).*?<!-- /\1 -->", re.DOTALL)


def fill(text: str, content: Callable[[str], str | None]) -> str:
    """Replace the marked parts of a text.

    Args:
        text: of a document.
        content: returns the content of a part by its name, or None for a part that stays as it is.
    """

    def filled(match: re.Match) -> str:
        made = content(match[1])
        return match[0] if made is None else f"<!-- {match[1]} -->{match[2]}{made}<!-- /{match[1]} -->"

    return _MARKED.sub(filled, text)


def names(text: str) -> list[str]:
    """Return the names of the marked parts of a text."""
    return [name for name, _ in _MARKED.findall(text)]


def fill_document(document: Path, content: Callable[[str], str | None]) -> None:
    """Fill in the marked parts of a document."""
    document.write_text(fill(document.read_text(encoding="utf-8"), content), encoding="utf-8")
