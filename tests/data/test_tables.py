import codecs
import csv
import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rdkit import Chem
from whole_tables import read_table

from graphslice.data.tables import count_rows, open_table, table_files, write_table
from graphslice.errors import InputError


def read(path, rows: int = 8192) -> tuple[list[str], list[list[str]]]:
    """Read columns and rows, and check the sizes and columns of the chunks."""
    with open_table(path, rows) as table:
        chunks = [rows.table for rows in table.chunks]
    assert all(chunk.column_names == table.columns for chunk in chunks)
    assert all(len(chunk) == rows for chunk in chunks[:-1]) and 0 < len(chunks[-1]) <= rows
    columns, cells, malformed = read_table(path, rows)
    assert not malformed
    return columns, cells


def copy(source, out, rows: int = 2) -> None:
    with open_table(source, rows) as table, write_table(out) as sink:
        for chunk in table.chunks:
            sink.write(chunk.table)


ROWS = [
    ["CCO", "1", "a"],
    ["c1ccccc1", "", 'say "hi", twice'],
    ["N", "3", "two\nlines"],
    ["", "4", " padded "],
    ["O", "5", "é"],
]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz", "T.CSV", "t.parquet"])
@pytest.mark.parametrize("rows", [1, 2, 5, 8192])
def test_all_cells_are_read(tmp_path, name, rows):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table(dict(zip("abc", map(list, zip(*ROWS, strict=True)), strict=True))), path)
    else:
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wt", newline="") as file:
            csv.writer(file, delimiter="\t" if ".tsv" in name else ",").writerows([list("abc"), *ROWS])
    assert read(path, rows) == (["a", "b", "c"], ROWS)


@pytest.mark.parametrize(
    ("content", "columns", "rows"),
    [
        (b"\xef\xbb\xbfsmiles,y\nC,1\n", ["smiles", "y"], [["C", "1"]]),
        (b'smiles,"a,b"\nC,"x,""y"""', ["smiles", "a,b"], [["C", 'x,"y"']]),
        (b'smiles,n\nC,"one\r\ntwo"\n', ["smiles", "n"], [["C", "one\r\ntwo"]]),
        (b"\n\r\nsmiles,y\nC,1\n", ["smiles", "y"], [["C", "1"]]),
        (b"smiles,y\rC,1\r\rN,2", ["smiles", "y"], [["C", "1"], ["N", "2"]]),
        (b"smiles;y\nC;1,5\nN;2\n", ["smiles", "y"], [["C", "1,5"], ["N", "2"]]),
        (b"smiles\ty;z\ta\nC\t1\t2\n", ["smiles", "y;z", "a"], [["C", "1", "2"]]),
        (b"id;smiles;pH 7,4\nA;C;3\nB;N;4\n", ["id", "smiles", "pH 7,4"], [["A", "C", "3"], ["B", "N", "4"]]),
        (b"smiles;pH 7,4\nC;3,5\n\nN;4,5\n", ["smiles", "pH 7,4"], [["C", "3,5"], ["N", "4,5"]]),
        (b'"smiles;y"\n"C,"\n', ["smiles;y"], [["C,"]]),
        (b"smiles|y\nC|1\nN|2\n", ["smiles", "y"], [["C", "1"], ["N", "2"]]),
        (b"smiles,y\nCC |Sg:gen:0:|,1\nN,2\n", ["smiles", "y"], [["CC |Sg:gen:0:|", "1"], ["N", "2"]]),
        (b"smiles,y\nC\0,1\n", ["smiles", "y"], [["C\0", "1"]]),
        (b'\nsmiles\nC\n\n""\nN\n\n', ["smiles"], [["C"], [""], ["N"]]),
        (b"smiles,caf\xe9\nC,1\n", ["smiles", "caf\u00e9"], [["C", "1"]]),
    ],
)
def test_csv_dialects_are_read(tmp_path, content, columns, rows):
    (tmp_path / "t.csv").write_bytes(content)
    assert read(tmp_path / "t.csv") == (columns, rows)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings_with_byte_order_mark(name, encoding, tmp_path):
    text = 'smiles,caf\u00e9\nC,\U0001f600\r\nN,"\u010a\n"'  # with bytes 0a that do not end a line
    content = text.replace(",", "\t" if ".tsv" in name else ",").encode(encoding)
    content = codecs.BOM_UTF16_BE + content if encoding == "utf-16-be" else content
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(tmp_path / name) == (["smiles", "caf\u00e9"], [["C", "\U0001f600"], ["N", "\u010a\n"]])


WORDS = {
    "cp1252": [["IC50 (µM)"], ["Löslichkeit", "Größe", "±", "café \u2013 pur"], ["a\u2019b", "10 €", "25 °C", "Å"]],
    "cp932": [["溶解度"], ["化合物名", "活性値", "エタノール"], ["名前", "カフェイン"]],
    "gb18030": [["溶解度"], ["名称", "活性", "乙醇", "乙烷"], ["化合物名称", "咖啡因"]],
    "cp949": [["화합물", "활성", "에탄올"]],
    "big5": [["化合物名稱", "活性", "乙醇"]],
    "cp1251": [["название", "активность", "этанол"]],
}


@pytest.mark.parametrize("encoding", WORDS)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.smi", "t.sdf"])
def test_other_encodings_are_found_and_named(encoding, name, tmp_path):
    """A few words in a table that is ASCII otherwise; Python's own codecs write it."""
    for words in WORDS[encoding]:
        others = [f"{'C' * (i + 1)}O{',1.5' * len(words)}" for i in range(30)]
        text = "\n".join([",".join(["smiles", *words]), *others, ",".join(["C", *words]), ""])
        if name == "t.smi":
            text = "C " + " ".join(words) + "\nCC\n"
        if name == "t.sdf":
            text = Chem.MolToMolBlock(Chem.MolFromSmiles("C")) + f"> <{words[0]}>\n{words[-1]}\n\n$$$$\n"
        content = text.encode(encoding)
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        with open_table(tmp_path / name) as table:
            cells = str(table.columns) + str([chunk.table.to_pylist() for chunk in table.chunks])
        assert all(word in cells for word in (words[:1] + words[-1:] if name == "t.sdf" else words)), cells[:200]
        assert len(table.notes) == 1 and f"{name} is not in UTF-8: it is read as" in table.notes[0]


@pytest.mark.parametrize("name", ["m.smi", "m.smiles", "m.smi.gz"])
def test_smi_files_are_read(tmp_path, name):
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wt") as file:
        file.write("CCO ethanol\n\nc1ccccc1\tbenzene, the ring\n  N  \nO")
    rows = [["CCO", "ethanol"], ["c1ccccc1", "benzene, the ring"], ["N", ""], ["O", ""]]
    assert read(tmp_path / name) == (["smiles", "name"], rows)


def test_tsv_with_other_separators_and_smi_with_commas_or_a_header_are_read(tmp_path):
    for name, content, expected in (
        ("t.tsv", "smiles,y\nC,1\nN,2\n", (["smiles", "y"], [["C", "1"], ["N", "2"]])),
        ("t.tsv", "smiles\ty\nC\t1,2,3\nN\t2,3,4\n", (["smiles", "y"], [["C", "1,2,3"], ["N", "2,3,4"]])),
        ("t.tsv", "a,smiles\nC\n", (["a,smiles"], [["C"]])),
        ("t.smi", "CCO,ethanol\nC;methane, pure\n", (["smiles", "name"], [["CCO", "ethanol"], ["C", "methane, pure"]])),
        ("t.smi", "SMILES Name\nCC |Sg:gen:0,1:| a b\n", (["smiles", "name"], [["CC |Sg:gen:0,1:|", "a b"]])),
    ):
        (tmp_path / name).write_text(content)
        assert read(tmp_path / name) == expected, name


def test_parquet_types_are_preserved(tmp_path):
    table = pa.table({"smiles": ["C", None], "n": pa.array([1, None], pa.int16()), "x": [0.1, 2.0]})
    pq.write_table(table, tmp_path / "in.parquet")
    copy(tmp_path / "in.parquet", tmp_path / "out.parquet", rows=1)
    assert pq.read_table(tmp_path / "out.parquet").equals(table)
    copy(tmp_path / "in.parquet", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "smiles,n,x\nC,1,0.1\n,,2.0\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"smiles,y\n", "has no rows"),
        ("t.csv", "smiles,y\nC,1\n".encode("utf-16")[:-1], "cannot read .*'utf-16.* codec"),
        ("t.parquet", b"PAR1 no more", "cannot read"),
        ("t.csv.gz", gzip.compress(b"smiles,y\n" + b"C,1\n" * 999, mtime=0)[:-20], "cannot read"),
        ("t.xls", b"PK", "GraphSlice reads .csv"),
    ],
)
def test_unreadable_files_are_rejected(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason) as error:
        read(tmp_path / name)
    assert name in str(error.value)


def test_parquet_without_rows_is_rejected(tmp_path):
    pq.write_table(pa.table({"smiles": pa.array([], pa.string())}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has no rows"):
        read(tmp_path / "t.parquet")


# --- folders ------------------------------------------------------------------------------------


def fill(folder, files: dict[str, str]):
    """Write texts to files of a folder; names ending in .parquet are converted from comma-separated text."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        if name.endswith(".parquet"):
            header, *lines = [line.split(",") for line in text.splitlines()]
            pq.write_table(pa.table(dict(zip(header, map(list, zip(*lines, strict=True)), strict=True))), folder / name)
        else:
            (folder / name).write_text(text)
    return folder


def test_folder_is_read_in_order_of_names(tmp_path):
    smiles = ["C" * n for n in range(1, 30)]
    files = {f"part-{n:05}.parquet": [] for n in (2, 0, 10, 1)}
    for name, begin, end in zip(sorted(files), [0, 1, 9, 28], [1, 9, 28, 29], strict=True):
        files[name] = "smiles,n\n" + "\n".join(f"{text},{len(text)}" for text in smiles[begin:end])
    folder = fill(tmp_path / "shards", files)
    expected = [[text, str(len(text))] for text in smiles]
    for rows in (3, 8192):
        with open_table(folder, rows) as table:
            assert table.columns == ["smiles", "n"] and table.estimated_rows > 0
            assert max(map(len, table.chunks)) <= rows
        assert read_table(folder, rows)[1] == expected
    assert count_rows(folder) == 29


@pytest.mark.parametrize("empty", ["smiles,y\n", ""])
def test_empty_text_shards_are_skipped(empty, tmp_path):
    fill(tmp_path, {"a.csv": empty, "b.csv": "smiles,y\nN,2\n", "c.csv": empty, "d.csv": "smiles,y\nO,3\n"})
    assert read_table(tmp_path)[1] == [["N", "2"], ["O", "3"]]
    for name in ("b.csv", "d.csv"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"a\.csv (has no rows|is empty)"):
        read(tmp_path)


def test_other_files_of_folder_are_ignored(tmp_path):
    """Hidden and marker files of other programs, files of other formats, and folders."""
    good = "smiles,y\nC,1\n"
    fill(tmp_path, {".hidden.csv": good, "~$open.xlsx": "lock", "_metadata.csv": good, "_SUCCESS": "", "a.txt": "n"})
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=rf"the folder {tmp_path} has no \.csv.* file"):
        read(tmp_path)
    fill(tmp_path, {"z.csv": good})
    assert table_files(tmp_path) == [tmp_path / "z.csv"] and read(tmp_path) == (["smiles", "y"], [["C", "1"]])
    assert table_files(tmp_path / "z.csv") == [tmp_path / "z.csv"]


@pytest.mark.parametrize("other", ["smiles,z", "smiles"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_folder_with_different_columns_is_rejected(other, kind, tmp_path):
    values = ",".join("1" for _ in other.split(","))
    fill(tmp_path, {f"a.{kind}": "smiles,y\nC,1\n", f"b.{kind}": f"{other}\n{values}\n"})
    with pytest.raises(InputError, match=rf"b\.{kind} has other columns than a\.{kind}"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        ({"t.parquet": "smiles\nC\nN\nO"}, 3),
        ({"t.csv": "smiles\nC\nN\nO\n"}, 4),
        ({"a.parquet": "smiles\nC\nN\nO", "b.parquet": "smiles\nC"}, 4),
        ({"a.csv": "smiles\nC\n", "b.csv.gz": "packed"}, None),
    ],
)
def test_rows_are_estimated(files, rows, tmp_path):
    """The header is counted too; compressed files are not counted."""
    fill(tmp_path, files)
    assert count_rows(tmp_path) == rows
    if len(files) == 1 and rows:
        assert count_rows(tmp_path / next(iter(files))) == rows
    assert count_rows(tmp_path / "absent.csv") is None


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["in.csv", "in.tsv"])
@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.csv.gz", "out.tsv.gz", "out.parquet"])
def test_written_rows_are_read_back(tmp_path, source, name):
    columns = ["smiles", "n", "n"]
    with open(tmp_path / source, "w", newline="") as file:
        csv.writer(file, delimiter="\t" if source.endswith("tsv") else ",").writerows([columns, *ROWS])
    copy(tmp_path / source, tmp_path / "new" / name)
    assert read(tmp_path / "new" / name) == (columns, ROWS)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


def test_floats_are_written_in_shortest_form(tmp_path):
    with write_table(tmp_path / "t.csv") as sink:
        sink.write(pa.table({"x": pa.array([0.1, float("nan"), 1e-20, 123456.79], pa.float32())}))
    assert (tmp_path / "t.csv").read_text() == 'x\n0.1\n""\n1e-20\n123456.79\n'


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.xlsx", "t.parquet"])
def test_interrupted_write_keeps_the_former_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"the old file")
    with pytest.raises(KeyboardInterrupt), write_table(tmp_path / name) as sink:
        sink.write(pa.table({"x": ["1"] * 20_000}))
        raise KeyboardInterrupt
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the old file"]


@pytest.mark.parametrize("name", ["t.xls", "file.txt/t.csv"])
def test_unwritable_files_are_rejected(tmp_path, name):
    (tmp_path / "file.txt").touch()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="cannot write"), write_table(tmp_path / name) as sink:
        sink.write(pa.table({"x": ["1"]}))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file.txt", "folder.csv"]


def test_csv_is_written_to_stdout(capsys):
    with write_table(None) as sink:
        sink.write(pa.table({"smiles": ["C"], "x": ["a,b"]}))
        sink.write(pa.table({"smiles": ["N"], "x": [None]}))
    assert capsys.readouterr().out == 'smiles,x\nC,"a,b"\nN,\n'


def test_wide_tables_are_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.data.tables._CELLS_AS_TEXT", 7)
    table = pa.table({"a": list(range(10)), "b": ["x\ry"] + ["z"] * 9, "c": [0.5] * 10})
    for name, chunk in (("t.csv", table), ("none.csv", table.slice(0, 0))):
        with write_table(tmp_path / name) as sink:
            sink.write(chunk)
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["a", "b", "c"], ["0", "x\ry", "0.5"], *([str(n), "z", "0.5"] for n in range(1, 10))]
    assert (tmp_path / "none.csv").read_text() == "a,b,c\n"
