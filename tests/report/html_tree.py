"""Parse a report page and check that it is well-formed and self-contained."""

import base64
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Parsed page: tag and attributes of every element, visible text (``words``) and text of the style sheets."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.style = ""
        self.feed(self.source)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else at {self.getpos()}"

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.texts.append(data)

    @property
    def images(self) -> dict[str, str]:
        """The SVG of each image by its accessible name."""
        return {one["alt"]: base64.b64decode(one["src"].partition(",")[2]).decode() for one in self.all("img")}

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def all(self, tag: str, style: str = "") -> list[dict]:
        """List the attributes of all elements with a tag, and with a class if one is given."""
        found = [attributes for name, attributes in self.elements if name == tag]
        return [one for one in found if not style or style in (one.get("class") or "").split()]

    def headings(self) -> list[int]:
        return [int(name[1]) for name, _ in self.elements if re.fullmatch(r"h[1-6]", name)]


def check_page(path: Path) -> Page:
    """Parse a page and check the properties that every report must have."""
    page = Page(path)
    assert page.source.startswith('<!doctype html>\n<html lang="en">')
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in page.all("a")]
    assert links and all(link.startswith("#") and link[1:] in ids for link in links)
    # Nothing is loaded from elsewhere, and there are no scripts.
    for tag, attributes in page.elements:
        assert tag not in ("script", "iframe", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("srcset", "xlink:href")
            assert name != "src" or value.startswith("data:image/svg+xml;base64,")
            assert name != "href" or value[0] == "#" or value == "data:,"
    assert "url(" not in page.style and "@import" not in page.style and "://" not in page.source.split("</style>")[0]
    # One title, no skipped heading level, and an accessible name for every drawing.
    levels = page.headings()
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes["alt"] for attributes in page.all("img"))
    for name in page.images:
        ElementTree.fromstring(page.images[name])
    shown = re.sub(r'<pre.*?</pre>|src="[^"]*"', "", page.source, flags=re.DOTALL)
    assert not re.search(r"\bnan\b|\binf\b|None\b", shown)
    return page
