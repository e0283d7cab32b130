"""Paths that tools may name."""

import pytest

from graphslice.errors import InputError
from graphslice.serve.mcp import Folder


@pytest.fixture
def folder(tmp_path):
    for path in ("in/data/a.csv", "in/book.xlsx", "out/b.csv", "out/c.xlsx"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    links = {"in/here": "data", "in/file.csv": "../out/b.csv", "in/dir": "../out", "in/x.xlsx": "../out/c.xlsx"}
    links |= {"in/mixed/z.csv": "../../out/b.csv", "in/loop": "loop", "in/new": "../out/absent"}
    (tmp_path / "in" / "mixed").mkdir()
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    (tmp_path / "alias").symlink_to("in")
    return Folder(tmp_path / "alias")  # itself behind a link


@pytest.mark.parametrize("name", ["data/a.csv", "data", "here", "here/a.csv", "new-run/x", "book.xlsx:A sheet"])
def test_paths_inside_are_returned(folder, name):
    assert folder.inside(name) == folder.path / name
    assert folder.inside(str(folder.path / name)) == folder.path / name


OUTSIDE = [
    "..",
    "../in/data/a.csv",
    "data/../data/a.csv",
    "/etc/passwd",
    "/",
    "~/../../etc",
    ".",
]
# By a link, or as a folder of shards that has one.
OUTSIDE += ["file.csv", "dir", "dir/b.csv", "dir/new", "new", "new/run", "x.xlsx", "x.xlsx:A sheet", "mixed"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_paths_that_lead_out_are_rejected(folder, name):
    with pytest.raises(InputError, match="leads out"):
        folder.inside(name)


@pytest.mark.parametrize("name", ["a\0b", "loop", "loop/x", "x" * 5000])
def test_impossible_paths_are_rejected(folder, name):
    with pytest.raises(InputError, match="is not a path"):
        folder.inside(name)


def test_large_files_are_rejected(folder, monkeypatch):
    (folder.path / "large.csv").write_text("smiles\nCCO\n")
    monkeypatch.setattr("graphslice.serve.mcp._MOST_BYTES", 10)
    with pytest.raises(InputError, match="more than 10 bytes"):
        folder.inside("large.csv")
