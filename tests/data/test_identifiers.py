from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from graphslice.config import DataConfig
from graphslice.data.dataset_loaders import load_dataset
from graphslice.data.identifiers import identifier_columns
from graphslice.errors import InputError

ROWS = 20
COLUMNS = {
    "Compound ID": [f"CMP-{i // 2}" for i in range(ROWS)],  # two measurements of each
    "project": ["A", "B"] * (ROWS // 2),
    "note": ["", "", "", *(f"note {i}" for i in range(ROWS - 3))],
    "barcode": [f"b{i}" for i in range(ROWS)],
    "mass": [f"{100 + i / 7:.3f}" for i in range(ROWS)],
    "ic50": [f">{i}.5" for i in range(ROWS)],
    "tray": [str(9000 + i) for i in range(ROWS)],
    "counts": [str(i // 2) for i in range(ROWS)],
    "charges": [f"[{i}, 1]" for i in range(ROWS)],
    "": [f"x{i}" for i in range(ROWS)],
    "row": [f"r{i}" for i in range(ROWS)],
}
TABLE = pa.table(COLUMNS)


def found(table: pa.Table = TABLE, used: tuple = (), requested: str | None = None) -> list[str]:
    chunks = [table.slice(0, 7), table.slice(7)]
    columns = identifier_columns(chunks, used, requested, "t.csv")
    assert all(texts == table.column(name).to_pylist() for name, texts in columns.items())
    return list(columns)


def test_columns_named_id_come_first_then_unique_ones():
    assert found() == ["Compound ID", "barcode", "tray"]
    assert found(used=("barcode", "Compound ID")) == ["tray"]


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "ID",
        "Name",
        "Drug_ID",
        "compound.id",
        "chembl id",
        "CMPD_CHEMBLID",
        "CompoundId",
        "moleculeName",
        "Cmpd No",
        "Cpd No.",
        "Catalogue Number",
        "compound_code",
    ],
)
def test_names_of_identifiers_are_recognised(name):
    assert found(pa.table({"project": ["A"] * 4, name: ["x", "x", "y", "y"]})) == [name]


@pytest.mark.parametrize("name", ["acid", "lipid", "valid", "filename", "identity", "namely"])
def test_words_that_end_in_id_or_name_are_no_identifiers(name):
    assert found(pa.table({name: ["x", "x", "y", "y"]})) == []


def test_at_most_three_columns_are_kept():
    assert found(pa.table({f"{i} id": ["a", "b"] for i in range(5)})) == ["0 id", "1 id", "2 id"]


def test_empty_and_numeric_columns_named_id_are_no_identifiers():
    assert found(pa.table({"a id": ["", "NA"], "b id": ["1.5", "2"], "c id": ["1", "2"]})) == ["c id"]


def test_requested_columns_are_used():
    assert found(requested="project,counts") == ["project", "counts"]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ("barcod", r"t.csv has no column 'barcod' \(did you mean 'barcode'\?\)"),
        ("mass", "--id-column: 'mass' cannot be an identifier"),
        ("row", "--id-column: 'row' cannot be an identifier"),
    ],
)
def test_unusable_requests_are_rejected(requested, message):
    with pytest.raises(InputError, match=message):
        found(used=("mass",), requested=requested)


def test_identifiers_of_split_files_are_concatenated(tmp_path):
    pd.DataFrame({"smiles": ["C", "CC"], "y": [1.0, 2.5], "cmpd_id": ["a", "b"]}).to_csv(tmp_path / "a.csv")
    pd.DataFrame({"smiles": ["CCC"], "y": [3.5], "code": ["c"]}).to_csv(tmp_path / "b.csv", index=False)
    config = DataConfig(dataset=str(tmp_path / "a.csv"), test_file=str(tmp_path / "b.csv"), targets="y")
    dataset = load_dataset(config)
    assert dataset.identifiers == {"cmpd_id": ["a", "b", ""], "code": ["", "", "c"]}
