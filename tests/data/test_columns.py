"""Descriptor columns of a table, from the file to the batch."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from graphslice import InputError
from graphslice.batch import GraphBatch
from graphslice.chem.descriptors import compute_descriptors
from graphslice.config import DataConfig, GraphConfig, RunConfig
from graphslice.data.batches import collate_rows
from graphslice.data.columns import match_column
from graphslice.data.datamodule import MoleculeData
from graphslice.data.loaders import load_dataset
from graphslice.data.preprocess import cached_store, featurize_dataset
from graphslice.data.store import GraphStore
from graphslice.data.tables import open_table

CSV = """smiles,y,t,word,t2
CCO,1,10.5,a,1e30
oops,2,20,b,
c1ccccc1O,3,,c,inf
C,4,hot,d,-2
CC,5,-1e3,e,NA
CCC,x,7,f,3
"""


@pytest.fixture
def table(tmp_path) -> Path:
    (tmp_path / "t.csv").write_text(CSV)
    return tmp_path / "t.csv"


def feature_values(path: Path, **settings) -> np.ndarray:
    result = load_dataset(DataConfig(str(path), targets="y", **settings)).columns
    assert result is not None and result.dtype == np.float32
    return result


def test_feature_columns_match_pandas(table):
    read = pd.read_csv(table)
    expected = pd.to_numeric(read["t"], errors="coerce").to_numpy(np.float32)
    np.testing.assert_array_equal(feature_values(table, features="t")[:, 0], expected)
    result = feature_values(table, features="morgan, t2 ,t")
    np.testing.assert_array_equal(result[:, 1], expected)
    assert result[:, 0].tolist() == pytest.approx([1e18, np.nan, np.nan, -2, np.nan, 3], nan_ok=True)


def test_non_numeric_cells_are_noted(tmp_path):
    (tmp_path / "t.csv").write_text('smiles,y,t,u\nC,1,20,5\nN,2,"20,5",\nO,3,,6\nF,4,<0.1,7\n')
    path = str(tmp_path / "t.csv")
    (note,) = load_dataset(DataConfig(path, targets="y", features="t,u")).notes
    assert "'t' of data.features has cells that are not numbers, the first is '20,5' in row 2 (give data.dec" in note
    assert load_dataset(DataConfig(path, targets="y", features="u")).notes == ()
    (tmp_path / "main.csv").write_text("smiles,y,t\nCC,1,5\n")
    (note,) = load_dataset(DataConfig(str(tmp_path / "main.csv"), targets="y", features="t", test_file=path)).notes
    assert note.startswith(f"{path}: the column 't'")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_booleans_become_one_and_zero(suffix, tmp_path):
    frame = pd.DataFrame({"smiles": list("CNOF"), "y": [1.0, 2, 3, 4], "t": [True, False, None, True]})
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    np.testing.assert_array_equal(feature_values(path, features="t")[:, 0], np.array([1, 0, np.nan, 1], np.float32))
    assert load_dataset(DataConfig(str(path), targets="y", features="t")).notes == ()


def test_column_without_training_values_is_rejected(tmp_path):
    (tmp_path / "t.csv").write_text("smiles,y,t,split\nC,1,,train\nN,2,,train\nO,3,5,valid\nF,4,7,test\n")
    config = RunConfig.from_dict({"data": {"dataset": str(tmp_path / "t.csv"), "targets": "y", "features": "t"}})
    with pytest.raises(
        InputError, match=r"\(training rows\): the column 't' of data.features has no number in any row"
    ):
        MoleculeData(load_dataset(config.data), config)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ("morgn", "has no column 'morgn' .did you mean 'morgan'"),
        ("t,y", "'y' cannot be a target and an input"),
        ("word", "the column 'word' of data.features has no number in any row"),
    ],
)
def test_invalid_feature_columns_are_rejected(features, reason, table):
    with pytest.raises(InputError, match=reason):
        load_dataset(DataConfig(str(table), targets="y", features=features))


def test_feature_column_is_not_inferred_as_target(tmp_path):
    (tmp_path / "t.csv").write_text("smiles,y,t\nC,1,2\nN,2,3\n")
    assert load_dataset(DataConfig(str(tmp_path / "t.csv"), features="t")).target_names == ["y"]
    (tmp_path / "t.csv").write_text('smiles,y,"T, K",p\nC,1,290,5\nN,2,300,6\n')
    assert feature_values(tmp_path / "t.csv", features='"T, K",p').tolist() == [[290, 5], [300, 6]]


@pytest.mark.parametrize("workers", [1, 2])
def test_store_holds_computed_descriptors(workers, table, tmp_path, monkeypatch, shards_of_four):
    monkeypatch.setattr("graphslice.data.featurize._DESCRIPTOR_TASK_ROWS", 1)
    names = ["t", "rdkit2d", "t2", "morgan"]
    data = DataConfig(str(table), targets="y", features=",".join(names))
    featurize_dataset(data, GraphConfig(), tmp_path / "s.arrow", workers=workers)
    store = GraphStore.open(tmp_path / "s.arrow")
    assert store.info.descriptors == tuple(names)
    smiles = pd.read_csv(table)["smiles"].tolist()
    computed, columns = compute_descriptors(smiles, ["rdkit2d", "morgan"]), feature_values(table, features="t,t2")
    expected = np.hstack([columns[:, :1], computed["rdkit2d"], columns[:, 1:], computed["morgan"]])
    np.testing.assert_array_equal(store.descriptors(np.arange(6), names), expected)
    rows = np.array([5, 0, 3, 3])
    batch = collate_rows(store, rows, descriptors=["t", "t2"])
    np.testing.assert_array_equal(batch.descriptors, columns[rows])
    GraphBatch(**vars(batch))  # validates its fields
    assert batch.to("cpu").descriptors is not None and collate_rows(store, rows).descriptors is None
    with pytest.raises(IndexError):
        store.descriptors(np.array([-1]), ["t"])
    with pytest.raises(InputError, match=r"no descriptors u, which the model reads: recreate it .* --features t,u"):
        store.descriptors(rows, ["t", "u"])


def test_descriptors_that_a_store_lacks_are_computed_from_its_smiles(table, tmp_path):
    featurize_dataset(DataConfig(str(table), targets="y", features="t"), GraphConfig(), tmp_path / "s.arrow")
    from_store = load_dataset(DataConfig(str(tmp_path / "s.arrow"), features="t,morgan"))
    from_table = load_dataset(DataConfig(str(table), targets="y", features="t,morgan"))
    rows = np.arange(len(from_table))
    first, second = (
        cached_store(dataset, GraphConfig(), tmp_path / "cache", descriptors=("t", "morgan"))
        for dataset in (from_store, from_table)
    )
    np.testing.assert_array_equal(first.descriptors(rows, ["t", "morgan"]), second.descriptors(rows, ["t", "morgan"]))
    assert first.name != str(tmp_path / "s.arrow") and len(first) == len(second)


def test_cache_depends_on_features(table, tmp_path):
    """Cached stores differ by the names of the features and by the values in the table."""

    def files(*features: str) -> int:
        dataset = load_dataset(DataConfig(str(table), targets="y", features=",".join(features) or None))
        result = cached_store(dataset, GraphConfig(), tmp_path / "cache", descriptors=features)
        assert result.info.descriptors == features
        return len([path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")])

    counts = [files(), files("morgan"), files("t"), files("morgan"), files("t", "morgan"), files("t2")]
    assert counts == [1, 2, 3, 3, 4, 5]
    table.write_text(CSV.replace("10.5", "10.6"))
    assert files("t") == 6 and files("morgan") == 6


def test_train_descriptors_are_those_of_training_set(tmp_path, monkeypatch):
    rows = [f"{'C' * n},{n},{100 * n},{'train' if n < 9 else 'valid'}" for n in range(1, 12)]
    (tmp_path / "t.csv").write_text("smiles,y,t,split\n" + "\n".join(rows))
    config = RunConfig(data=DataConfig(str(tmp_path / "t.csv"), targets="y", features="t", cache=str(tmp_path)))
    data = MoleculeData(load_dataset(config.data), config)
    assert data.train_descriptors()[:, 0].tolist() == [100 * n for n in range(1, 9)]
    monkeypatch.setattr("graphslice.data.datamodule._MAX_DESCRIPTOR_ROWS", 5)
    sample = data.train_descriptors()[:, 0].tolist()
    assert len(set(sample)) == 5 and max(sample) <= 800


@pytest.mark.parametrize("header", ["smiles,gap  , Dose ", "Smiles,GAP,DOSE", "smiles,gap,dose"])
@pytest.mark.parametrize(("target", "feature"), [("gap", "dose"), ("gap  ", "dose "), ("Gap", "Dose")])
def test_names_match_without_outer_spaces_and_case(header, target, feature, tmp_path):
    rows = "".join(f"{'C' * n}O,{n}.5,{n % 3}\n" for n in range(1, 30))
    (tmp_path / "t.csv").write_text(f"{header}\n{rows}")
    config = DataConfig(dataset=str(tmp_path / "t.csv"), targets=target, features=feature)
    dataset = load_dataset(config)
    assert [name.lower() for name in dataset.target_names] == ["gap"]
    assert dataset.targets[:2, 0].tolist() == [1.5, 2.5] and dataset.columns[:2, 0].tolist() == [1, 2]


def test_names_that_only_case_or_spaces_tell_apart_are_exact(tmp_path):
    (tmp_path / "t.csv").write_text("smiles,Y,y,z ,z\n" + "".join(f"{'C' * n},{n},0,1,2\n" for n in range(1, 30)))
    columns = ["smiles", "Y", "y", "z ", "z"]
    with open_table(tmp_path / "t.csv") as table:
        assert table.columns == columns
    found = [match_column(name, columns) for name in ("Y", "y", "z", "z ", "Z", " y", "x")]
    assert found == ["Y", "y", "z", "z ", None, "y", None]
