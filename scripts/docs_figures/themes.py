"""Light and dark variants of a picture: ``NAME.svg`` on white and ``NAME-dark.svg`` with a transparent background.

The light one is also shown where a page cannot choose, so it has a background of its own.
"""

import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from graphslice.report.figures import COLOURS

STYLESHEET = Path(__file__).parents[2] / "graphslice" / "report" / "templates" / "style.css"
#: Fill of boxes in diagrams; the report has it as ``--box``.
BOX = "#f4f6f8"
_LIGHT = COLOURS | {"box": BOX}
# Without these, matplotlib would draw in black, which has no dark variant.
_INK = {"text.color": COLOURS["ink"], "legend.labelcolor": COLOURS["ink"], "legend.frameon": False}
_STYLE = {**_INK, "svg.fonttype": "path", "font.size": 10, "xtick.labelsize": 10, "ytick.labelsize": 10}


def style() -> matplotlib.rc_context:
    """Return the context of all pictures: the style of reports, texts as paths."""
    return matplotlib.rc_context({**_STYLE, "axes.labelsize": 10.5})


def dark_colours() -> dict[str, str]:
    """Return the dark variant of each light colour, from the style sheet of reports."""
    dark = STYLESHEET.read_text(encoding="utf-8").partition("prefers-color-scheme: dark")[2]
    return {light: re.search(rf"--{name}: (#\w{{6}})", dark)[1] for name, light in _LIGHT.items()}


def to_svg(figure: Figure, name: str) -> str:
    """Return a figure as SVG. Identifiers depend on the name only, so the same figure gives the same text."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return re.sub(r"(\d\.\d{4})\d+(?=[^<>]*>)", r"\1", svg[svg.index("<svg") :])


def darkened(svg: str) -> str:
    """Replace every light colour, in lower case, by its dark variant."""
    colours = dark_colours()
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: colours.get(match[0], match[0]), svg)


def save(svg: str, path: Path) -> None:
    """Write both variants; ``path`` is without suffix."""
    head, rest = svg[: svg.index(">") + 1], svg[svg.index(">") + 1 :]
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    path.with_suffix(".svg").write_text(head + background + rest, encoding="utf-8")
    path.with_name(f"{path.name}-dark.svg").write_text(darkened(svg), encoding="utf-8")
