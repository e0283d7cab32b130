"""Malformed rows keep their position and have a reason; property tests with arbitrary tables and bytes."""

import csv
import gzip
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whole_tables import read_table

from graphslice.config import DataConfig
from graphslice.data import formats as text_tables
from graphslice.data.loaders import dataset_from_table
from graphslice.data.tables import open_table, write_table
from graphslice.errors import InputError

MALFORMED = {
    "too-many": (
        b"smiles,y\nC,1\nN,2,3\nO,4\n",
        [["C", "1"], ["N", "2"], ["O", "4"]],
        {1: "3 fields where the header has 2 (line 3 of t.csv)"},
    ),
    "row-is-not-line": (
        b'\nsmiles,n\n\nC,"a\nb"\n\nN\nO,"a\r\nb",\nF,1\n',
        [["C", "a\nb"], ["N", ""], ["O", "a\r\nb"], ["F", "1"]],
        {
            1: "1 field where the header has 2 (line 7 of t.csv)",
            2: "3 fields where the header has 2 (line 9 of t.csv)",
        },
    ),
    "header-of-two-lines": (
        b'smiles,"a\nb"\nC\n',
        [["C", ""]],
        {0: "1 field where the header has 2 (line 3 of t.csv)"},
    ),
    "carriage-returns": (
        b"smiles,n\rC,1,2\rO,3",
        [["C", "1"], ["O", "3"]],
        {0: "3 fields where the header has 2 (line 2 of t.csv)"},
    ),
}


@pytest.mark.parametrize("rows", [1, 2, 8192])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_rows_have_reasons(name, rows, tmp_path):
    content, cells, malformed = MALFORMED[name]
    (tmp_path / "t.csv").write_bytes(content)
    assert read_table(tmp_path / "t.csv", rows)[1:] == (cells, malformed)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content))
    assert read_table(tmp_path / "t.csv.gz", rows)[1] == cells


@pytest.mark.parametrize(
    ("content", "line"),
    [(b'smiles,n\nC,1\nN,"two, three\nO,"4"\nF,5\n', 3), (b'smiles,n\nC,"a"b\nN,5\n', 2), (b'\nsmiles,"n\nC,1\n', 2)],
)
@pytest.mark.parametrize("rows", [1, 8192])
def test_wrong_quotes_are_an_error_of_the_file(content, line, rows, tmp_path):
    """Nobody knows where the next row begins."""
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"t\.csv: a quote that opens in line {line} is not closed, or text follows"):
        read_table(tmp_path / "t.csv", rows)


def test_cxsmiles_extension_is_not_name():
    lines = ["C |^1:0| methyl radical", "C |^1:0|", "CC ethane", "CCC |odd", "C"]
    assert [*text_tables.smiles_rows(lines)] == [
        ["C |^1:0|", "methyl radical"],
        ["C |^1:0|", ""],
        ["CC", "ethane"],
        ["CCC", "|odd"],
        ["C", ""],
    ]


# Characters with a special meaning in CSV files.
SPECIAL_CHARACTERS = 'Ca,;\t"\n\r \0\u00e9\u0085\u2028\U0001f600'
CELLS = st.text(st.sampled_from(SPECIAL_CHARACTERS) | st.characters(exclude_categories=["Cs"]), max_size=6)
TABLES = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=6))
PIECES = [*b"smiles y split train C 1 1,5 , ;".split(), b"\t", b'"', b'""', b"\n", b"\r\n", b"\r"]
PIECES += [b"\xe9", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b" ", b"NA", b"smiles,y\n", b'smiles;"y"\n', b"C,1\n"]
CONTENTS = st.binary(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)


# More with a profile: pytest --hypothesis-profile thorough tests/data/test_text_tables.py
FEW_HUNDRED = settings(max_examples=max(200, settings().max_examples))


@contextmanager
def file_of(content: bytes, name: str = "t.csv") -> Iterator[Path]:
    """Create a file in a temporary folder, for one of many examples."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
        yield path


def as_csv(rows: list[list[str]], delimiter: str, end: str) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    return file.getvalue().encode()


@FEW_HUNDRED
@given(TABLES, st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 9))
@example([["a\rb"], [""]], ",", "\n", 1)  # regression: was written without quotes and read as two rows
@example([['"', ""]], ";", "\r", 1)
def test_well_formed_tables_are_read_and_written(rows, delimiter, end, size):
    header = [f"column {i}" for i in range(len(rows[0]))]
    with file_of(as_csv([header, *rows], delimiter, end)) as path:
        first_read = read_table(path, size)
        with open_table(path) as table, write_table(path.with_name("again.csv")) as sink:
            for chunk in table.chunks:
                sink.write(chunk.table)
        assert first_read == read_table(path.with_name("again.csv")) == (header, rows, {})


@FEW_HUNDRED
@given(CONTENTS, st.sampled_from(["t.csv", "t.tsv", "t.smi", "t.csv.gz"]), st.integers(1, 3))
@example(b"smiles,y\nC,1,2\n", "t.csv.gz", 1)
@example(b"\ns,y\nC,1\n", "t.csv", 1)
@example(b"s\n\n\nC\n\n", "t.csv", 1)
def test_arbitrary_bytes_give_rows_or_one_line_error(content, name, size):
    """The rows do not depend on the size of chunks; without quotes there are as many rows as lines."""
    with file_of(content, name) as path:
        try:
            columns, cells, malformed = read_table(path)
        except InputError as error:
            assert name in str(error) and "\n" not in str(error)
            return
        assert read_table(path, size) == (columns, cells, malformed)
    assert all(len(row) == len(columns) for row in cells)
    assert set(malformed) <= set(range(len(cells))) and all(malformed.values())
    assert all(name in reason and "\n" not in reason for reason in malformed.values())
    if b'"' not in content and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        lines = re.split(b"\r\n|\r|\n", content.removeprefix(b"\xef\xbb\xbf").strip(b"\r\n"))
        lines = [line for line in lines if line]
        if name != "t.smi":
            assert len(cells) == len(lines) - 1
        else:
            lines = [line for line in lines if line.decode(errors="replace").strip()]
            assert len(cells) == len(lines) - bool(re.match(rb"\s*smi(les)?(\s|[,;]|$)", lines[0], re.IGNORECASE))


@FEW_HUNDRED
@given(CONTENTS, st.sampled_from(["t.csv", "t.tsv"]), st.sampled_from([None, "y"]))
def test_arbitrary_labels_give_label_or_reason(content, name, targets):
    with file_of(content, name) as path:
        try:
            dataset = dataset_from_table(path, DataConfig(dataset=str(path), targets=targets))
        except InputError as error:
            assert name in str(error) and "\n" not in str(error)
            return
        rows = read_table(path)[1]
    labelled = np.isfinite(dataset.targets).all(axis=1)
    assert len(dataset) == len(dataset.smiles) == len(rows)
    assert [row in dataset.rejected for row in range(len(rows))] == (~labelled).tolist()


@pytest.mark.parametrize(("line", "separator"), [("sep=;", ";"), ('"sep=,"', ","), ("sep=\t", "\t")])
def test_first_line_of_excel_names_the_separator(line, separator, tmp_path):
    rows = [["smiles", "a;b,c"], ["CCO", "1"], ["C", "2", "3"]]
    text = "\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows)
    (tmp_path / "t.csv").write_text(f"{line}\r\n{text}\n")
    columns, cells, malformed = read_table(tmp_path / "t.csv")
    assert columns == rows[0] and [row[0] for row in cells] == ["CCO", "C"]
    assert malformed == {1: "3 fields where the header has 2 (line 4 of t.csv)"}
