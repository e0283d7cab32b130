"""docs/start/chemprop.md: every option of this package in its tables exists."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "start" / "chemprop.md").read_text(encoding="utf-8")
#: Code spans of the first two columns of every table of options.
ROWS = [
    tuple(re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|")[:2])
    for row in PAGE.splitlines()
    if row.startswith(("| `", "| column", "| logs"))
]
OPTION = re.compile(r"(?<![\w-])-{1,2}[a-z][\w.-]*")


def options(spans: list[str]) -> set[str]:
    return {option for span in spans for option in OPTION.findall(span)}


def test_our_options_of_the_page_exist(capsys):
    from graphslice.cli.main import main

    known = set()
    for command in ("train", "predict", "fingerprint", "tune"):
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        known |= set(OPTION.findall(capsys.readouterr().out))
    named = set().union(*(options(ours) for _, ours in ROWS))
    assert len(named) > 25 and named - known == set()
