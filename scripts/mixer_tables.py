"""Put the results of comparisons into the documents: ``python scripts/mixer_tables.py [NAME=FOLDER ...]``.

In docs/mixers.md, the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced by the table of
``docs/comparisons/NAME.json``.
With NAME=FOLDER the result of a comparison is first copied from its folder; ``pictures.py`` draws it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from graphslice.compare.report import RESULT, table

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = DOCS / "mixers.md"


def fill_tables(text: str) -> str:
    """The document with every table as its result says."""

    def fill(match: re.Match) -> str:
        result = json.loads((DOCS / "comparisons" / f"{match[1]}.json").read_text())
        return f"<!-- {match[1]} -->\n{table(result)}<!-- /{match[1]} -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", fill, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="NAME=FOLDER", help="a comparison to copy first, of a folder")
    for given in parser.parse_args().given:
        name, _, folder = given.partition("=")
        shutil.copyfile(Path(folder) / RESULT, DOCS / "comparisons" / f"{name}.json")
    DOCUMENT.write_text(fill_tables(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
