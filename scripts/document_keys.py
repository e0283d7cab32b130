"""Write the keys of the JSON documents, and the tools of graphslice mcp, into docs/programs.md.

The text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced by the keys of the document of the command NAME,
for ``tool NAME`` by the arguments of a tool, for ``document NAME`` by its result. Objects that occur again are listed
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphslice.documents import DOCUMENTS, TOOLS
from marks import fill

PAGE = Path(__file__).parents[1] / "docs" / "programs.md"


def rows(keys: dict[str, Any], place: str, listed: dict[int, str], parent: str = "") -> Iterator[str]:
    """The lines of a table: one for each key, after it those of an object inside.

    ``listed`` has the places of objects by their identity, and gets new ones; ``place`` is that of the table.
    """
    for name, value in keys.items():
        if not name:
            continue
        path = f"{parent}{name.removesuffix('?')}{'[]' * isinstance(value, list)}"
        inside = {} if isinstance(value, str) else value[0] if isinstance(value, list) else value
        kind, _, meaning = value.partition(": ") if isinstance(value, str) else ("object", "", inside.get("", ""))
        kind = kind.replace("?", " or null") + (", may be absent" if name.endswith("?") else "")
        known = listed.get(id(inside))
        yield f"| `{path}` | {kind} | {meaning}{f': keys as in {known}' if known else ''} |\n"
        if inside and not known:
            listed[id(inside)] = f"`{path}` of {place}"
            yield from rows(inside, place, listed, f"{path}.")


def table(name: str, listed: dict[int, str]) -> str:
    """The table of a command, of the arguments of ``tool NAME``, or of the ``document NAME`` of a tool."""
    kind, _, tool = name.rpartition(" ")
    keys = TOOLS[tool].inputs if kind == "tool" else TOOLS[tool].document if kind == "document" else DOCUMENTS[name]
    if known := listed.get(id(keys)):
        return f"As {known}.\n"
    listed[id(keys)] = name
    return "| key | type | meaning |\n|---|---|---|\n" + "".join(rows(keys, name, listed))


def fill_keys(text: str) -> str:
    """The page with every table."""
    listed: dict[int, str] = {}
    return fill(text, lambda name: table(name, listed))


if __name__ == "__main__":
    PAGE.write_text(fill_keys(PAGE.read_text()))
