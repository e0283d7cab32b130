"""Rejection of small files that would expand to gigabytes, before the memory is allocated."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphslice.data import parquet, text_tables
from graphslice.data.tables import open_table
from graphslice.errors import InputError


def rows_of(path) -> list[int]:
    """Number of rows of each chunk of a table."""
    with open_table(path) as table:
        return [len(chunk) for chunk in table.chunks]


def test_parquet_dictionary_with_long_text_is_rejected(tmp_path):
    path = tmp_path / "t.parquet"
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["C" * 1_000_000])
    pq.write_table(pa.table({"smiles": repeated}), path, store_schema=False, compression="zstd")
    assert path.stat().st_size < 1000
    with pytest.raises(InputError, match=r"t\.parquet: a file of \d+ bytes expands to more than .* up to row \d+:"):
        rows_of(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary()])
def test_long_parquet_cells_come_in_small_batches(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 100_000)
    pq.write_table(pa.table({"smiles": pa.array(["C" * 1000] * 500 + ["O"] * 500).cast(kind)}), tmp_path / "t.parquet")
    assert rows_of(tmp_path / "t.parquet") == [100] * 10


def test_long_parquet_cell_is_rejected_with_row(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "LONGEST", 1000)
    pq.write_table(pa.table({"smiles": ["C"] * 20 + ["C" * 1001]}), tmp_path / "t.parquet")
    message = r"t\.parquet: row 21 has more than 1,000 bytes in the column 'smiles', the limit of a cell"
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path / "t.parquet")


def test_parquet_column_with_long_mean_cell_is_rejected_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "LONGEST", 1000)
    pq.write_table(pa.table({"x": [[0.0] * 1000]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"column 'x[^']*' have 8,000 bytes on average in 1 rows"):
        rows_of(tmp_path / "t.parquet")


def test_parquet_columns_with_equal_names_are_read(tmp_path):
    columns = [["C"] * 3, ["N"] * 3]
    pq.write_table(pa.table(columns, names=["smiles", "smiles"]), tmp_path / "t.parquet")
    assert rows_of(tmp_path / "t.parquet") == [3]


@pytest.mark.parametrize("name", ["t.smi.gz", "t.csv.gz", "t.csv"])
def test_long_line_is_rejected_with_number(tmp_path, name, monkeypatch):
    monkeypatch.setattr(text_tables, "LONGEST", 100_000)
    content = b"smiles,y\nC,1\n" + b"C" * 1_000_000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(InputError, match=rf"{name}: line 3 has more than 100,000 bytes, the limit of a line"):
        rows_of(tmp_path / name)


def test_highly_compressed_text_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "_SMALL", 1 << 17)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"smiles,y\n" + b"C,1\n" * 100_000))
    assert path.stat().st_size * 100 < 400_000
    monkeypatch.setattr(text_tables, "_EXPANSION", 100)
    with pytest.raises(InputError, match=r"a file of .* bytes expands to more than 131,072 bytes and 100 times"):
        rows_of(path)


def test_memory_error_names_file(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("smiles,y\nC,1\n")

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(text_tables.csv, "reader", fail)
    with pytest.raises(InputError, match=r"cannot read .*t\.csv: not enough memory"):
        rows_of(tmp_path / "t.csv")
