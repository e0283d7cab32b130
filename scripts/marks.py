"""Parts of documents that scripts fill in: between ``<!-- NAME -->`` and ``<!-- /NAME -->``, or in a line between
``<span id="NAME">`` and ``</span>``."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import mdformat

_MARKED = re.compile(r"(<!-- ([\w: -]+) -->\n).*?(<!-- /\2 -->)|(<span id=\"([\w-]+)\">).*?(</span>)", re.DOTALL)
_OPTIONS = tomllib.loads((Path(__file__).parents[1] / ".mdformat.toml").read_text())


def fill(text: str, content: Callable[[str], str | None]) -> str:
    """Replace the marked parts of a text for which ``content`` returns one, and format it as ``make lint`` demands."""

    def filled(match: re.Match) -> str:
        begin, name, end = filter(None, match.groups())
        made = content(name)
        return match[0] if made is None else f"{begin}{made}{end}"

    return mdformat.text(_MARKED.sub(filled, text), options=_OPTIONS, extensions=("gfm", "tables"))


def names(text: str) -> list[str]:
    """Return the names of the marked parts of a text."""
    return [match[2] or match[5] for match in _MARKED.finditer(text)]


def fill_document(document: Path, content: Callable[[str], str | None]) -> None:
    """Fill in the marked parts of a document."""
    document.write_text(fill(document.read_text(encoding="utf-8"), content), encoding="utf-8")
