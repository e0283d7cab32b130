import re
import zipfile
from datetime import date, datetime
from pathlib import Path

import openpyxl
import pyarrow as pa
import pytest
from whole_tables import read_table

from graphslice.config import DataConfig
from graphslice.data.loaders import load_dataset
from graphslice.data.tables import count_rows, is_table_name, open_table, table_files, write_table
from graphslice.errors import InputError

ROWS = [
    ["smiles", "y", "flag", "when", "id", "note"],
    ["CCO", 1.5, True, datetime(2024, 3, 1), 7, "a,b"],
    ["C", None, False, datetime(2024, 3, 1, 12, 30), 8.0, " x "],
    ["N", 0.1 + 0.2, None, date(2026, 1, 31), 1e-7, "two\nlines"],
]
TEXTS = [
    ["CCO", "1.5", "TRUE", "2024-03-01", "7", "a,b"],
    ["C", "", "FALSE", "2024-03-01 12:30:00", "8", " x "],
    ["N", "0.3", "", "2026-01-31", "1e-07", "two\nlines"],
]


def write(path: Path, *sheets: list[list]) -> Path:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for number, rows in enumerate(sheets, 1):
        sheet = workbook.create_sheet(f"Sheet {number}")
        for row in rows:
            sheet.append(row)
    workbook.save(path)
    return path


def edit(path: Path, part: str, old: str, new: str) -> None:
    """Replace a text in one part of a workbook."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert old.encode() in parts[part]
    parts[part] = parts[part].replace(old.encode(), new.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def read(path: Path | str) -> tuple[list[str], list[list[str]]]:
    return read_table(path, 2)[:2]


def test_cells_are_texts_as_in_a_csv_export(tmp_path):
    assert read(write(tmp_path / "t.xlsx", ROWS)) == (ROWS[0], TEXTS)


def test_blank_rows_between_others_are_kept_and_columns_without_a_name_left_out(tmp_path):
    header = [None, "smiles", None, "Solubility\n(mg/mL) "]  # a line break within a name is a space
    rows = [[], header, [None, "C", "note", 1, "far away"], [None, None, " "], [], [None, "N"], []]
    columns = ["smiles", "Solubility (mg/mL)"]
    assert read(write(tmp_path / "t.xlsx", rows)) == (columns, [["C", "1"], ["", ""], ["", ""], ["N", ""]])


def test_formulas_give_their_stored_result_and_errors_are_missing_labels(tmp_path):
    path = write(tmp_path / "t.xlsx", [["smiles", "y"], ["C", "=1+1"], ["CC", "=0/0"], ["CCC", 3], ["CCCC", "=NA()"]])
    sheet = "xl/worksheets/sheet1.xml"
    edit(path, sheet, "<f>1+1</f><v />", "<f>1+1</f><v>2</v>")
    for row, formula, error in ((3, "0/0", "#DIV/0!"), (5, "NA()", "#N/A")):
        edit(path, sheet, f'<c r="B{row}"><f>{formula}</f><v />', f'<c r="B{row}" t="e"><f>{formula}</f><v>{error}</v>')
    assert [row[1] for row in read(path)[1]] == ["2", "#DIV/0!", "3", "#N/A"]
    dataset = load_dataset(DataConfig(dataset=str(path)))
    assert dataset.targets[:, 0].tolist() == pytest.approx([2, float("nan"), 3, float("nan")], nan_ok=True)
    assert dataset.unreadable() == {}


@pytest.mark.parametrize("name", ["Sheet 2", "Sheet 1", None])
def test_sheet_is_the_named_one_or_the_first(tmp_path, name):
    path = write(tmp_path / "t.xlsx", [["smiles"], ["C"]], [["smiles"], ["CC"]])
    path = Path(f"{path}:{name}") if name else path
    assert read(path)[1] == [["CC" if name == "Sheet 2" else "C"]]
    assert is_table_name(str(path)) and table_files(path) == [path] and count_rows(path) is None
    path = write(tmp_path / "u.xlsx", ROWS)
    assert load_dataset(DataConfig(dataset=f"{path}:Sheet 1", targets="y")).smiles == ["CCO", "C", "N"]


README = [["About this file"], ["Measured in 2024"]]
OTHERS = "only the first sheet of {0} is read: to read another of 'Sheet 2', give FILE.xlsx:SHEET"


def test_errors_of_a_first_sheet_without_smiles_name_the_others(tmp_path):
    for first, problem in ((README, "'About this file'"), (README[:1], "has no rows")):
        path = write(tmp_path / "t.xlsx", first, ROWS)
        with pytest.raises(InputError, match=problem + ".*; " + re.escape(OTHERS.format(path))):
            load_dataset(DataConfig(dataset=str(path)))


def test_note_names_other_sheets_of_each_file_of_a_folder(tmp_path):
    paths = [write(tmp_path / name, ROWS, ROWS) for name in ("a.xlsx", "b.xlsx")]
    assert load_dataset(DataConfig(dataset=str(tmp_path), targets="y")).notes == tuple(map(OTHERS.format, paths))
    assert load_dataset(DataConfig(dataset=f"{paths[0]}:Sheet 1", targets="y")).notes == ()


def test_unknown_sheet_is_an_input_error(tmp_path):
    path = write(tmp_path / "t.xlsx", ROWS, ROWS)
    with pytest.raises(InputError, match=r"has no sheet 'Sheet2' \(did you mean 'Sheet 2'\?\); it has 'Sheet 1', "):
        read(f"{path}:Sheet2")
    with pytest.raises(InputError, match=r"no file at .*none\.xlsx"):
        read(tmp_path / "none.xlsx:Sheet 1")


def test_cut_workbooks_are_input_errors(tmp_path):
    data = write(tmp_path / "t.xlsx", ROWS * 3).read_bytes()
    for content in (b"", b"smiles,y\nC,1\n", data[:97], data[:-97]):
        (tmp_path / "t.xlsx").write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read .*t\.xlsx .*: save it again as \.xlsx without a password"):
            read(tmp_path / "t.xlsx")


def test_wrong_size_in_the_workbook_loses_no_rows(tmp_path):
    path = write(tmp_path / "t.xlsx", ROWS)
    edit(path, "xl/worksheets/sheet1.xml", '<dimension ref="A1:F4"', '<dimension ref="A1"')
    assert read(path) == (ROWS[0], TEXTS)


WRITTEN = {  # text of a cell: value in the sheet
    "12": 12,
    "-0.41309999999999997": -0.4131,  # 16 digits
    "1e-05": 1e-05,
    "2.0": 2,
    "007": "007",
    "1.10": "1.10",
    "1E5": "1E5",
    "1e+400": "1e+400",
    "1234567890123456": "1234567890123456",
    "=C1CC1": "=C1CC1",
    "#N/A": "#N/A",
    "nan": "nan",
    "é\tb\x01": "é\tb\ufffd",
    "": None,
}


def test_texts_are_written_as_numbers_if_they_are_and_never_as_formulas(tmp_path):
    with write_table(tmp_path / "t.xlsx") as sink:
        for text in WRITTEN:
            sink.write(pa.table({"name": ["x"], "=cell": [text]}))
    header, *rows = openpyxl.load_workbook(tmp_path / "t.xlsx").active.iter_rows()
    assert [cell.value for cell in header] == ["name", "=cell"]
    assert [row[1].value for row in rows] == list(WRITTEN.values())
    assert {cell.data_type for row in (header, *rows) for cell in row} == {"s", "n"}


def test_workbook_is_read_back_as_it_was_written(tmp_path):
    columns = {"smiles": pa.array(["C", "N"]), "p": pa.array([0.1, None], pa.float32()), "l": pa.array([[1.5], None])}
    with write_table(tmp_path / "t.xlsx") as sink:
        sink.write(pa.table(columns))
    assert read(tmp_path / "t.xlsx") == (["smiles", "p", "l"], [["C", "0.1", "[1.5]"], ["N", "", ""]])


def test_table_larger_than_a_sheet_is_an_input_error(tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.data.formats._MOST_ROWS", 3)
    with pytest.raises(InputError, match="at most 3 rows"), write_table(tmp_path / "t.xlsx") as sink:
        sink.write(pa.table({"x": ["a", "ab", "abcd"]}))
    assert not [*tmp_path.iterdir()]


def test_hidden_first_sheet_is_passed_over(tmp_path):
    path = write(tmp_path / "t.xlsx", [["hidden"], ["C"]], [["smiles"], ["CC"]])
    workbook = openpyxl.load_workbook(path)
    workbook.worksheets[0].sheet_state = "hidden"
    workbook.active = 1
    workbook.save(path)
    assert read(path) == (["smiles"], [["CC"]])


def test_formulas_without_stored_results_and_merged_cells_are_named(tmp_path):
    rows = [["smiles", "a", "y"], *([("C" * n), n, f"=B{n + 1}*2"] for n in range(1, 15))]
    path = write(tmp_path / "t.xlsx", rows, ROWS)
    workbook = openpyxl.load_workbook(path)
    workbook["Sheet 1"].merge_cells("B3:B5")
    workbook.save(path)
    with open_table(path) as table:
        first, formulas, merged = table.notes
    assert "only the first sheet" in first
    assert "14 cells with a formula but no stored result (the first: C2) read as empty" in formulas
    assert "of the merged cells B3:B5 only the first has a value" in merged
    with open_table(Path(f"{path}:Sheet 2")) as table:
        assert table.notes == []
    # As a spreadsheet program saves it: with results.
    content = {entry: zipfile.ZipFile(path).read(entry) for entry in zipfile.ZipFile(path).namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in content.items():
            archive.writestr(entry, re.sub(rb"(</f>)<v ?/>|(</f>)<v></v>", rb"</f><v>3</v>", data))
    with open_table(Path(f"{path}:Sheet 1")) as table:
        assert "stored result" not in str(table.notes)
        assert {row["y"] for chunk in table.chunks for row in chunk.table.to_pylist()} == {"3"}
